//! Goals and figures: for scripts a line of JSON each, for people a table.

use std::fmt;

use serde::Serialize;
use serde_json::{Map, Value, json};

/// What the times are worth.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Figures {
    /// A GPU's.
    Device,
    /// Baton's fake driver's: they mean nothing.
    Fake,
    /// Exact, of the simulated driver.
    Virtual,
}

/// What a value is to be.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Bound {
    /// Not below.
    AtLeast(f64),
    /// Not above.
    AtMost(f64),
}

/// One goal.
#[derive(Clone, PartialEq, Debug)]
pub struct Goal {
    /// Its name.
    pub goal: &'static str,
    /// How long batches last, ms; 0: as their sizes say.
    pub latency_ms: f64,
    /// Rows of a batch; 0: all sizes.
    pub rows: u32,
    /// What was measured.
    pub value: f64,
    /// What it is to be.
    pub bound: Bound,
    /// Figures that it was made of.
    pub beside: Vec<(&'static str, f64)>,
}

impl Goal {
    /// Whether the value is as it is to be.
    pub fn is_met(&self) -> bool {
        match self.bound {
            Bound::AtLeast(bound) => self.value >= bound,
            Bound::AtMost(bound) => self.value <= bound,
        }
    }

    pub(super) fn with(mut self, name: &'static str, value: f64) -> Self {
        self.beside.push((name, value));
        self
    }
}

/// All goals on one device.
#[derive(Clone, PartialEq, Debug)]
pub struct GpuReport {
    /// What it is called.
    pub device: String,
    /// What its times are worth.
    pub figures: Figures,
    /// What executes: `cuda`, Baton's kernel, or `onnx`, the graphs of a model.
    pub engine: &'static str,
    /// In the order in which they were measured.
    pub goals: Vec<Goal>,
}

impl GpuReport {
    pub(super) fn new(device: String, figures: Figures, engine: &'static str) -> Self {
        Self { device, figures, engine, goals: Vec::new() }
    }

    /// Whether every goal is met that this device can show. The fake one shows that everything works.
    pub fn is_good(&self) -> bool {
        self.figures == Figures::Fake || self.goals.iter().all(Goal::is_met)
    }

    /// A JSON object for each goal.
    ///
    /// # Errors
    /// None that is known.
    pub fn lines(&self) -> Result<Vec<String>, serde_json::Error> {
        self.goals.iter().map(|goal| serde_json::to_string(&self.line(goal))).collect()
    }

    fn line(&self, goal: &Goal) -> Map<String, Value> {
        let (is, bound) = match goal.bound {
            Bound::AtLeast(bound) => ("at_least", bound),
            Bound::AtMost(bound) => ("at_most", bound),
        };
        let mut line = Map::new();
        let mut put = |key: &str, value: Value| drop(line.insert(key.to_owned(), value));
        put("goal", goal.goal.into());
        put("engine", self.engine.into());
        put("device", self.device.clone().into());
        put("figures", json!(self.figures));
        put("latency_ms", goal.latency_ms.into());
        put("rows", goal.rows.into());
        put("value", goal.value.into());
        put("is", is.into());
        put("bound", bound.into());
        put("met", goal.is_met().into());
        goal.beside.iter().for_each(|&(name, value)| put(name, value.into()));
        line
    }
}

impl fmt::Display for GpuReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let worth = match self.figures {
            Figures::Device => "",
            Figures::Fake => " (FAKE GPU: times mean nothing)",
            Figures::Virtual => " (virtual time)",
        };
        writeln!(f, "engine {} on {}{worth}", self.engine, self.device)?;
        for goal in &self.goals {
            let (sign, bound) = match goal.bound {
                Bound::AtLeast(bound) => ("≥", bound),
                Bound::AtMost(bound) => ("≤", bound),
            };
            let mark = if goal.is_met() { " " } else { "MISSED" };
            let what = format!("{} ({} rows, {} ms)", goal.goal, goal.rows, goal.latency_ms);
            writeln!(f, "{what:46} {:10.4}  {sign} {bound:<8} {mark}", goal.value)?;
        }
        Ok(())
    }
}
