//! What an experiment is, and the list of them.

use serde_json::Value;

use super::grid::Ranking;
use super::runner::Runner;
use super::{
    ReproduceError, clockwork, fig1, fig4, fig6, fig7, fig8, fig9, fig10, fig11, fig13, gpus,
    latency, superserve, table4,
};
use crate::plot::Figure;

/// One table or figure of the paper, or one more.
#[derive(Debug)]
pub(crate) struct Experiment {
    /// On the command line and of the files.
    pub(crate) name: &'static str,
    /// With the paper's number, if it has one.
    pub(crate) title: &'static str,
    /// What the paper shows and where, and how it is set up here.
    pub(crate) setup: &'static str,
    /// By how much we differ, and why. Written by hand, after looking.
    pub(crate) remark: &'static str,
    /// Of its searches when measured in full.
    pub(crate) seeds: u32,
    pub(crate) run: fn(&mut Runner) -> Result<Findings, ReproduceError>,
}

/// What came out.
pub(crate) struct Findings {
    /// The measured points, for the JSON file.
    pub(crate) points: Value,
    pub(crate) figure: Figure,
    pub(crate) claims: Vec<Claim>,
    /// Markdown.
    pub(crate) tables: String,
    /// Of experiments that measure goodput.
    pub(crate) rankings: Vec<Ranking>,
}

/// Something the paper says, beside what is true here.
pub(crate) struct Claim {
    pub(crate) paper: &'static str,
    /// Section or figure; numbers are never read off a plot.
    pub(crate) place: &'static str,
    pub(crate) here: String,
}

/// All of them, in the order of the page.
pub(crate) const EXPERIMENTS: [Experiment; 14] = [
    table4::EXPERIMENT,
    fig6::EXPERIMENT,
    fig1::EXPERIMENT,
    fig4::EXPERIMENT,
    fig7::EXPERIMENT,
    fig8::EXPERIMENT,
    fig9::EXPERIMENT,
    fig10::EXPERIMENT,
    fig11::EXPERIMENT,
    fig13::EXPERIMENT,
    latency::EXPERIMENT,
    gpus::EXPERIMENT,
    clockwork::EXPERIMENT,
    superserve::EXPERIMENT,
];
