//! Clockwork's set-ups as scenario files, from its Table 1.

use std::fmt::Write as _;

use baton_topo::zoo::{MeasuredModel, clockwork_measured};

/// Pages of 16 MiB that Clockwork's published code takes of a V100 with 32 GB.
pub(super) const PAGES: u32 = 1_376;
/// MB of a page.
const PAGE_MB: f64 = 16.777_216;

/// A scenario file as it grows.
pub(super) struct Scenario(String);

/// The models of one entry of a scenario file.
pub(super) struct Entry {
    pub(super) name: &'static str,
    pub(super) slo_ms: f64,
    pub(super) copies: u32,
    /// Further keys, a line each.
    pub(super) keys: String,
}

impl Entry {
    pub(super) fn new(name: &'static str, slo_ms: f64, copies: u32) -> Self {
        Self { name, slo_ms, copies, keys: String::new() }
    }

    pub(super) fn with(self, keys: String) -> Self {
        Self { keys, ..self }
    }
}

impl Scenario {
    /// `keys` are further lines for the whole scenario.
    pub(super) fn new(gpus: u32, (warmup_s, duration_s): (f64, f64), keys: &str) -> Self {
        Self(format!(
            "gpus = {gpus}\nduration_s = {duration_s}\nwarmup_s = {warmup_s}\n\
             network = {{ ctrl_us = 300 }}\n{keys}"
        ))
    }

    /// Models like the ResNet50 of Table 1.
    pub(super) fn resnet50(self, entry: &Entry) -> Self {
        let rows = clockwork_measured();
        let row = rows.iter().find(|row| row.name == "resnet50");
        self.model(entry, row.expect("Table 1 has a ResNet50; the tests build every scenario"))
    }

    /// As many copies of each model of Table 1.
    pub(super) fn table1(self, slo_ms: f64, copies: u32) -> Self {
        clockwork_measured().into_iter().fold(self, |scenario, row| {
            let keys = format!("name = \"{}\"\n", row.name);
            scenario.entry(&keys, slo_ms, copies, &row)
        })
    }

    fn model(self, entry: &Entry, row: &MeasuredModel) -> Self {
        let keys = format!("name = \"{}\"\n{}", entry.name, entry.keys);
        self.entry(&keys, entry.slo_ms, entry.copies, row)
    }

    fn entry(mut self, keys: &str, slo_ms: f64, copies: u32, row: &MeasuredModel) -> Self {
        let MeasuredModel { weights_mb, load_ms, .. } = row;
        let table: Vec<String> = row.table_ms().iter().map(|ms| format!("{ms:.4}")).collect();
        write!(
            self.0,
            "[[model]]\n{keys}latency_ms = [{}]\nslo_ms = {slo_ms:.3}\ncopies = {copies}\n\
             weights_mb = {weights_mb:.1}\nload_ms = {load_ms:.2}\n",
            table.join(", ")
        )
        .expect("memory takes every line");
        self
    }

    pub(super) fn text(self) -> String {
        self.0
    }
}

/// Pages that the weights take.
pub(super) fn pages(row: &MeasuredModel) -> f64 {
    (row.weights_mb / PAGE_MB).ceil()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_gpu_holds_196_models_like_resnet50() {
        let rows = clockwork_measured();
        let of = |name| pages(rows.iter().find(|row| row.name == name).unwrap());
        assert_eq!((of("resnet50"), of("mobile_pose_mobilenetv3")), (7.0, 2.0));
        assert_eq!(PAGES / of("resnet50") as u32, 196);
    }
}
