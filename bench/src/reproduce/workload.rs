//! The papers' workloads as scenario files, so that each point can be run again by itself.

use std::fmt::Write as _;

use baton_topo::zoo;

use super::precision::Precision;

/// One point of an experiment. What is not set: Poisson, equal popularity, no network.
#[derive(Clone, Debug)]
pub(crate) struct Workload {
    pub(crate) gpus: u32,
    pub(crate) models: Models,
    /// Gamma's shape; `None` is Poisson.
    pub(crate) shape: Option<f64>,
    /// Zipf's exponent; `None` is equal popularity.
    pub(crate) zipf: Option<f64>,
    /// Plan delivery, µs.
    pub(crate) ctrl_us: f64,
}

#[derive(Clone, Debug)]
pub(crate) enum Models {
    /// One of Symphony's model tables, and which of its models.
    Zoo { zoo: &'static str, filter: &'static str },
    /// Copies of one model.
    Copies { profile: Profile, slo_ms: f64, copies: u32 },
}

/// ℓ(b) = α·b + β of a model.
#[derive(Clone, Debug)]
pub(crate) struct Profile {
    pub(crate) name: String,
    pub(crate) alpha_ms: f64,
    pub(crate) beta_ms: f64,
}

impl Profile {
    /// A model of Symphony's Table 5.
    pub(crate) fn gtx_1080ti(name: &str) -> Self {
        let models = zoo::gtx_1080ti();
        let model = models.into_iter().find(|model| model.name == name);
        let model = model.expect("experiments name models of Table 5; the tests build them all");
        Self { name: model.name, alpha_ms: model.alpha_ms, beta_ms: model.beta_ms }
    }
}

impl Workload {
    pub(crate) fn new(gpus: u32, models: Models) -> Self {
        Self { gpus, models, shape: None, zipf: None, ctrl_us: 0.0 }
    }

    /// Copies of one model.
    pub(crate) fn copies(gpus: u32, profile: &Profile, slo_ms: f64, copies: u32) -> Self {
        Self::new(gpus, Models::Copies { profile: profile.clone(), slo_ms, copies })
    }

    /// The scenario file.
    pub(crate) fn scenario(&self, precision: Precision) -> String {
        let (warmup_s, duration_s) = precision.spans_s();
        let mut text =
            format!("gpus = {}\nduration_s = {duration_s}\nwarmup_s = {warmup_s}\n", self.gpus);
        let mut line = |line: String| writeln!(text, "{line}").expect("memory takes every line");
        match self.shape {
            None => line("arrival = { process = \"poisson\" }".to_owned()),
            Some(shape) => line(format!("arrival = {{ process = \"gamma\", shape = {shape} }}")),
        }
        if let Some(s) = self.zipf {
            line(format!("popularity = {{ kind = \"zipf\", s = {s} }}"));
        }
        if self.ctrl_us > 0.0 {
            line(format!("network = {{ ctrl_us = {} }}", self.ctrl_us));
        }
        match &self.models {
            Models::Zoo { zoo, filter } => {
                line(format!("zoo = \"{zoo}\"\nzoo_filter = \"{filter}\""));
            }
            Models::Copies { profile: Profile { name, alpha_ms, beta_ms }, slo_ms, copies } => {
                line(format!(
                    "[[model]]\nname = \"{name}\"\nalpha_ms = {alpha_ms}\nbeta_ms = {beta_ms}\n\
                     slo_ms = {slo_ms}\ncopies = {copies}"
                ));
            }
        }
        text
    }
}
