//! How long the certificates of this process last: read beside those that are in use, shown to Prometheus.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

use baton_metrics::{Metric, Value};
use baton_topo::TlsSpec;
use x509_parser::pem::Pem;

/// A certificate that lasts no longer is warned of.
const SOON_S: f64 = 14.0 * DAY_S;
const DAY_S: f64 = 86_400.0;
/// The key of the one that [`baton_rdma::Credentials::problems`] looks at.
pub(crate) const MEMBERS: &str = "tls.cert";

/// What to say of a certificate that has little time left or, unless peers' words for it are said already, none.
pub(crate) fn expiring(key: &str, file: &Path) -> Option<String> {
    let left_s = certificates_end(file)? as f64 - now_s();
    let when = match left_s {
        ..=0.0 if key == MEMBERS => return None,
        ..=0.0 => "has expired".to_owned(),
        ..=SOON_S => format!("expires in {:.1} days", left_s / DAY_S),
        _ => return None,
    };
    Some(format!(
        "{key}: {} {when}; fix: renew it, and see *TLS* in docs/operating.md",
        file.display()
    ))
}

/// When the first of the certificates in a PEM file expires, in seconds since 1970; `None` if that cannot be read. The
/// libraries that check it do not say it.
fn certificates_end(file: &Path) -> Option<i64> {
    let text = std::fs::read(file).ok()?;
    let blocks: Result<Vec<Pem>, _> = Pem::iter_from_buffer(&text).collect();
    let certificates = blocks.ok()?.into_iter().filter(|block| block.label == "CERTIFICATE");
    let end = |block: Pem| Some(block.parse_x509().ok()?.validity().not_after.timestamp());
    certificates.map(end).collect::<Option<Vec<i64>>>()?.into_iter().min()
}

#[expect(clippy::disallowed_methods, reason = "certificates are dated by the calendar")]
fn now_s() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64()
}

/// Stands for no certificate, or one whose end cannot be read.
const NEVER: i64 = i64::MAX;

/// When they expire. Clones share it.
#[derive(Clone, Debug)]
pub(crate) struct Certificates {
    members: Option<i64>,
    clients: Arc<AtomicI64>,
}

impl Certificates {
    /// Of a member of the cluster, which reads its files once.
    pub(crate) fn new(members: Option<&TlsSpec>) -> Self {
        let members = members.and_then(|tls| certificates_end(&tls.cert));
        Self { members, clients: Arc::new(NEVER.into()) }
    }

    /// The gateway has read this one, or has none.
    pub(crate) fn read_of_clients(&self, file: Option<&Path>) {
        let end = file.and_then(certificates_end).unwrap_or(NEVER);
        self.clients.store(end, Ordering::Relaxed);
    }

    /// As of now.
    pub(crate) fn metric(&self) -> Metric {
        self.shown(now_s())
    }

    fn shown(&self, now_s: f64) -> Metric {
        let clients = Some(self.clients.load(Ordering::Relaxed)).filter(|&end| end != NEVER);
        let ends = [("members", self.members), ("clients", clients)];
        let series = ends
            .into_iter()
            .filter_map(|(of, end)| Some((vec![of.to_owned()], Value::Level(end? as f64 - now_s))));
        let help = "Until a certificate in use expires, below 0 since: towards `members` (TLS of the cluster), or of a gateway towards `clients`";
        Metric {
            series: series.collect(),
            ..Metric::gauges("baton_certificate_remaining_seconds", help, &["towards"])
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_left_is_shown_for_each_certificate_there_is() {
        let none = Certificates::new(None);
        assert_eq!(none.shown(5.0).series, []);
        let both = Certificates { members: Some(100), clients: Arc::new(90.into()) };
        let of = |towards: &str, left: f64| (vec![towards.to_owned()], Value::Level(left));
        assert_eq!(both.shown(95.5).series, [of("members", 4.5), of("clients", -5.5)]);
        both.read_of_clients(None);
        assert_eq!(both.clone().shown(95.5).series, [of("members", 4.5)]);
    }

    #[test]
    fn the_first_to_expire_of_a_file_counts_in_either_form_of_time() {
        let file = std::env::temp_dir().join(format!("baton-validity-{}", std::process::id()));
        let certificate = |year: i32| {
            let mut params = rcgen::CertificateParams::new(vec!["a.example".to_owned()]).unwrap();
            params.not_after = rcgen::date_time_ymd(year, 3, 1);
            params.self_signed(&rcgen::KeyPair::generate().unwrap()).unwrap().pem()
        };
        for (years, wanted) in [
            (&[2031][..], Some(1_930_089_600)),
            (&[2100], Some(4_107_542_400)),
            (&[2100, 2031, 2040], Some(1_930_089_600)),
            (&[], None),
        ] {
            let text: String = years.iter().map(|&year| certificate(year)).collect();
            std::fs::write(&file, text).unwrap();
            assert_eq!(certificates_end(&file), wanted, "{years:?}");
        }
        std::fs::write(&file, "-----BEGIN CERTIFICATE-----\nMAMCAQE=\n-----END CERTIFICATE-----\n")
            .unwrap();
        assert_eq!(certificates_end(&file), None, "a number is no certificate");
        std::fs::remove_file(&file).unwrap();
        assert_eq!(certificates_end(&file), None);
    }
}
