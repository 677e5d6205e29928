//! What a matrix came to.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::super::report::Times;

/// One direction of one pair.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Measured {
    /// `rdma` or `tcp`.
    pub transport: String,
    /// Rounds of one object.
    pub rounds: u64,
    /// Time of one object, nothing else under way.
    pub latency_us: Times,
    /// With objects kept under way, GB/s.
    pub gigabytes_per_s: f64,
}

/// One pair: a puller, as a backend is one, and a sender, as a frontend is one.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Cell {
    /// Who pulled.
    pub puller: String,
    /// From whom.
    pub sender: String,
    /// What it came to; `null` where it failed.
    pub measured: Option<Measured>,
    /// Bytes pulled over what the link could have carried; `null` without `--link-gbps`.
    pub efficiency: Option<f64>,
    /// Why it failed; `null` where it did not.
    pub error: Option<String>,
}

/// All pairs, one after the other.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct MatrixReport {
    /// `matrix`.
    pub bench: &'static str,
    /// Bytes of an object.
    pub bytes: u32,
    /// Objects under way when bandwidth is measured.
    pub objects: u32,
    /// The responders, in alphabetical order.
    pub hosts: Vec<String>,
    /// Every ordered pair of two of them.
    pub cells: Vec<Cell>,
}

impl MatrixReport {
    /// True if every pair was measured.
    pub fn is_whole(&self) -> bool {
        self.cells.iter().all(|cell| cell.measured.is_some())
    }

    fn table(
        &self,
        f: &mut fmt::Formatter<'_>,
        what: &str,
        show: impl Fn(&Cell) -> Option<String>,
    ) -> fmt::Result {
        let width = self.hosts.iter().map(String::len).max().unwrap_or(0).max(8);
        write!(f, "{what}; a row pulls from the columns\n{:width$}", "")?;
        for sender in &self.hosts {
            write!(f, "  {sender:>width$}")?;
        }
        writeln!(f)?;
        for puller in &self.hosts {
            write!(f, "{puller:width$}")?;
            for sender in &self.hosts {
                let of_pair = |cell: &&Cell| cell.puller == *puller && cell.sender == *sender;
                let cell = self.cells.iter().find(of_pair);
                let text = cell.map_or_else(|| Some("-".into()), &show);
                let text = text.unwrap_or_else(|| "FAILED".into());
                write!(f, "  {text:>width$}")?;
            }
            writeln!(f)?;
        }
        Ok(())
    }
}

impl fmt::Display for MatrixReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { bytes, objects, .. } = self;
        self.table(f, &format!("one READ of {bytes} bytes, median µs"), |cell| {
            let measured = cell.measured.as_ref()?;
            Some(format!("{:.1}", measured.latency_us.p50))
        })?;
        self.table(f, &format!("{objects} READs under way, GB/s"), |cell| {
            Some(format!("{:.3}", cell.measured.as_ref()?.gigabytes_per_s))
        })?;
        self.table(f, "over", |cell| Some(cell.measured.as_ref()?.transport.clone()))?;
        for cell in &self.cells {
            if let Some(efficiency) = cell.efficiency {
                writeln!(f, "{} from {}: efficiency {efficiency:.2}", cell.puller, cell.sender)?;
            }
            if let Some(error) = &cell.error {
                writeln!(f, "FAILED {} from {}: {error}", cell.puller, cell.sender)?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pair_that_failed_is_seen_in_every_table_and_explained() {
        let latency_us = Times { min: 1.0, p25: 2.0, p50: 2.5, p75: 2.75, p99: 3.0, p999: 4.0 };
        let (transport, rounds, gigabytes_per_s) = ("rdma".to_owned(), 9, 1.25);
        let measured = Some(Measured { transport, rounds, latency_us, gigabytes_per_s });
        let (puller, sender) = ("a".to_owned(), "b".to_owned());
        let good = Cell { puller, sender, measured, efficiency: Some(0.5), error: None };
        let bad = Cell {
            puller: "b".into(),
            sender: "a".into(),
            measured: None,
            efficiency: None,
            error: Some("no route".into()),
        };
        let hosts = vec!["a".to_owned(), "b".to_owned()];
        let mut report =
            MatrixReport { bench: "matrix", bytes: 8, objects: 2, hosts, cells: vec![good, bad] };
        let text = report.to_string();
        assert!(!report.is_whole());
        assert_eq!(text.matches("FAILED").count(), 4, "{text}");
        assert!(text.contains("FAILED b from a: no route") && text.contains(" 2.5"), "{text}");
        assert!(text.contains("a from b: efficiency 0.50") && text.contains("1.250"), "{text}");
        report.cells.pop();
        assert!(report.is_whole());
    }
}
