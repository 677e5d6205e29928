//! Until when certificates are good. The libraries that check it do not say it.

use std::path::Path;

use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject as _;
use x509_parser::parse_x509_certificate;

/// When the first of the certificates in a PEM file expires, in seconds since 1970; `None` if that cannot be read.
pub fn certificates_end(file: &Path) -> Option<i64> {
    let all: Result<Vec<_>, _> = CertificateDer::pem_file_iter(file).ok()?.collect();
    let ends =
        all.ok()?.iter().map(|certificate| end(certificate)).collect::<Option<Vec<i64>>>()?;
    ends.into_iter().min()
}

fn end(der: &[u8]) -> Option<i64> {
    let (_, certificate) = parse_x509_certificate(der).ok()?;
    Some(certificate.validity().not_after.timestamp())
}

#[cfg(test)]
mod tests {
    use super::*;

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
