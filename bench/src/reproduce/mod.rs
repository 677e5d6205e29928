//! The Symphony, Clockwork and SuperServe papers' tables and figures, measured with the simulator: `baton reproduce`.
//!
//! ```text
//!  Experiment ─cases─▶ Runner (2 threads, virtual time) ─▶ Findings ─▶ NAME.json, NAME.svg, Markdown
//! ```
//!
//! Each experiment is one file of this module: its cases, its figure, what the paper says with the
//! place where it says it, and a remark on the difference. No number of the paper is read off a
//! plot. The same code and precision give the same bytes.

mod curve;
mod distribution;
mod experiment;
mod gpus;
mod grid;
mod markdown;
mod page;
mod policies;
mod precision;
mod runner;
mod workload;

mod clockwork;
mod fig1;
mod fig10;
mod fig11;
mod fig13;
mod fig4;
mod fig6;
mod fig7;
mod fig8;
mod fig9;
mod latency;
mod superserve;
mod table4;

use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::plot::{self, PlotError};

use experiment::{EXPERIMENTS, Experiment, Findings};
pub use precision::Precision;
use runner::Runner;

/// Why an experiment has no result.
#[derive(thiserror::Error, Debug)]
pub enum ReproduceError {
    /// No experiment of that name.
    #[error("no experiment {name}: give all or one of {}", names().join(", "))]
    Name {
        /// As given.
        name: String,
    },
    /// An experiment's scenario is none. A defect of the experiment.
    #[error(transparent)]
    Scenario(#[from] baton_sim::ScenarioError),
    /// A run failed.
    #[error(transparent)]
    Sim(#[from] baton_sim::SimError),
    /// The figure could not be drawn.
    #[error(transparent)]
    Plot(#[from] PlotError),
    /// A file could not be written.
    #[error("{}: {error}", path.display())]
    Write {
        /// The file or folder.
        path: PathBuf,
        /// What the system said.
        error: std::io::Error,
    },
}

/// What one experiment came to.
#[derive(Debug)]
pub struct Reproduced {
    /// The experiment.
    pub name: &'static str,
    /// The content of its JSON file.
    pub data: Value,
    /// Its section of the page.
    pub section: String,
}

/// The name that stands for every experiment.
pub const ALL: &str = "all";

/// The experiments by name, in the order of the page.
pub fn names() -> Vec<&'static str> {
    EXPERIMENTS.iter().map(|experiment| experiment.name).collect()
}

/// Runs the experiment `name`, or `all`. Writes `reproduction/NAME.json` and `reproduction/NAME.svg`
/// into `out`; after `all` also `reproduction.md`, the page.
///
/// # Errors
/// Unknown name, a run failed, or a file cannot be written.
pub fn reproduce(
    name: &str,
    precision: Precision,
    out: &Path,
) -> Result<Vec<Reproduced>, ReproduceError> {
    let all = name == ALL;
    let chosen: Vec<&Experiment> =
        EXPERIMENTS.iter().filter(|experiment| all || experiment.name == name).collect();
    if chosen.is_empty() {
        return Err(ReproduceError::Name { name: name.to_owned() });
    }
    let figures = out.join(page::FIGURES);
    std::fs::create_dir_all(&figures)
        .map_err(|error| ReproduceError::Write { path: figures.clone(), error })?;
    let mut runner = Runner::new(precision);
    let mut parts = Vec::new();
    for experiment in chosen {
        tracing::info!(experiment = experiment.name, precision = precision.as_str(), "measuring");
        runner.seeds = experiment.seeds.min(precision.seeds());
        runner.spans_s = precision.spans_s();
        let mut findings = (experiment.run)(&mut runner)?;
        findings.figure.caption = precision.caption(runner.seeds, runner.spans_s);
        let data = page::data(experiment, &runner, &findings);
        let svg = plot::svg(&findings.figure)?;
        write(&figures.join(format!("{}.json", experiment.name)), &page::lines(&data))?;
        write(&figures.join(format!("{}.svg", experiment.name)), &svg)?;
        parts.push((experiment, findings, data));
    }
    if all {
        write(&out.join(page::PAGE), &page::page(precision, &parts))?;
    }
    let reproduced = |(experiment, findings, data): (&Experiment, Findings, Value)| Reproduced {
        name: experiment.name,
        section: page::section(experiment, &findings),
        data,
    };
    Ok(parts.into_iter().map(reproduced).collect())
}

fn write(path: &Path, text: &str) -> Result<(), ReproduceError> {
    std::fs::write(path, text)
        .map_err(|error| ReproduceError::Write { path: path.to_owned(), error })
}
