//! Many models on few slots that hold a part of them.

use std::fmt::Write as _;

use baton_topo::zoo;

use super::super::draw::{Dice, short};
use super::draw::{Sketch, Span, arrival};
use crate::weights::{LOAD_GB_PER_S, MIB, PAGE_MIB};

/// A slot holds at least three models at a time of any size: its batches' and the next.
const MODELS_HELD_MIN: f64 = 3.0;

/// See the module documentation.
#[derive(Debug)]
pub(super) struct Caches {
    gpus: u32,
    kinds: Vec<Kind>,
    /// Of all weights, what the slots hold together.
    held: f64,
    popularity: String,
    arrival: String,
    course: Course,
    /// Keys of what is left out of most scenarios.
    extras: String,
    load: f64,
}

/// Copies of one model.
#[derive(Clone, Debug)]
struct Kind {
    copies: u32,
    alpha_ms: f64,
    beta_ms: f64,
    /// Where the model's times were measured up to a size.
    batch_max: Option<u32>,
    weights_mb: f64,
    slo_ms: f64,
    /// One task each, from so many clients per copy; 0: open arrivals.
    clients: u32,
}

/// How popularity changes.
#[derive(Clone, Copy, Debug)]
enum Course {
    Steady,
    /// Every second kind rises and falls.
    Sines {
        period_s: f64,
    },
    /// One kind at a time has ten times its load, each for this long.
    Drift {
        each_s: f64,
    },
    /// For a while, one or a few models have this many times the load of all others.
    Crowd {
        models: u32,
        seconds: f64,
        factor: f64,
    },
}

impl Caches {
    pub(super) fn draw(dice: &mut Dice) -> Self {
        let gpus = dice.log_between(1.0, 13.0) as u32;
        let course = course(dice);
        let mut kinds = kinds(dice, course);
        if kinds.len() > 1 && dice.chance(0.15) {
            let last = kinds.last_mut().expect("there are several");
            last.copies = last.copies.min(20);
            last.clients = dice.log_between(1.0, 17.0) as u32;
        }
        let popularity = match dice.unit() {
            part if part < 0.4 => {
                let s = short(dice.between(0.5, 1.3));
                format!("popularity = {{ kind = \"zipf\", s = {s} }}\n")
            }
            part if part < 0.55 => {
                let models: u32 = kinds.iter().map(|kind| kind.copies).sum();
                format!("popularity = {{ kind = \"azure\", functions = {} }}\n", models * 10)
            }
            _ => String::new(),
        };
        Self {
            gpus,
            kinds,
            held: short(dice.log_between(0.03, 0.8)),
            popularity,
            arrival: arrival(dice, 0.25),
            course,
            extras: extras(dice, gpus),
            load: short(dice.log_between(0.3, 1.6)),
        }
    }

    /// Of each slot.
    fn pages(&self) -> u32 {
        let pages = |kind: &Kind| (kind.weights_mb * 1e6 / (PAGE_MIB * MIB)).ceil();
        let all: f64 = self.kinds.iter().map(|kind| f64::from(kind.copies) * pages(kind)).sum();
        let largest = self.kinds.iter().map(pages).fold(1.0, f64::max);
        (all * self.held / f64::from(self.gpus)).max(MODELS_HELD_MIN * largest).ceil() as u32
    }
}

impl Sketch for Caches {
    fn load(&self) -> f64 {
        self.load
    }

    fn text(&self, span: Span) -> String {
        let Self { gpus, popularity, arrival, extras, .. } = self;
        let pages = self.pages();
        let mut text = format!("gpus = {gpus}\npages = {pages}\n{popularity}{arrival}{extras}");
        for (k, kind) in self.kinds.iter().enumerate() {
            text += &model(&format!("kind{k}"), kind);
            text += &self.course.of(k, self.kinds.len(), span);
        }
        if let Course::Crowd { models, seconds, factor } = self.course {
            let of_all: u32 = self.kinds.iter().map(|kind| kind.copies).sum();
            let seconds = seconds.min(span.duration_s / 2.0);
            let weight = f64::from(of_all) * factor * seconds / span.duration_s;
            text += &model("crowd", &Kind { copies: models, ..self.kinds[0].clone() });
            let (from, to) = (span.at(0.3), span.at(0.3) + seconds);
            let _infallible = writeln!(
                text,
                "weight = {weight:.3}\nload = {{ shape = \"steps\", points = [[0, 0.001], \
                 [{from:.3}, 1], [{to:.3}, 0.001]] }}"
            );
        }
        text
    }

    fn description(&self) -> String {
        let kind = |kind: &Kind| {
            let Kind { copies, alpha_ms, beta_ms, slo_ms, weights_mb, clients, .. } = kind;
            let closed = if *clients > 0 { format!(", {clients} clients") } else { String::new() };
            format!("{copies} × {alpha_ms}b+{beta_ms} in {slo_ms} ms, {weights_mb} MB{closed}")
        };
        let kinds: Vec<String> = self.kinds.iter().map(kind).collect();
        let keys = [&self.popularity, &self.arrival, &self.extras].map(|keys| keys.trim_end());
        let keys: Vec<&str> = keys.into_iter().filter(|keys| !keys.is_empty()).collect();
        format!(
            "{} GPUs of {} pages; {}; {:?}; {}; load {}",
            self.gpus,
            self.pages(),
            kinds.join(" + "),
            self.course,
            keys.join("; ").replace('\n', "; "),
            self.load
        )
    }
}

fn model(name: &str, kind: &Kind) -> String {
    let Kind { copies, alpha_ms, beta_ms, weights_mb, slo_ms, .. } = kind;
    let mut text = format!(
        "\n[[model]]\nname = \"{name}\"\nalpha_ms = {alpha_ms}\nbeta_ms = {beta_ms}\n\
         slo_ms = {slo_ms}\nweights_mb = {weights_mb}\ncopies = {copies}\n"
    );
    let mut add = |line: String| writeln!(text, "{line}").expect("memory takes every line");
    if let Some(batch_max) = kind.batch_max {
        add(format!("batch_max = {batch_max}"));
    }
    if kind.clients > 0 {
        add(format!("closed_loop = {{ clients = {} }}", kind.clients));
    }
    text
}

impl Course {
    /// Of kind `k` of several, as a key of its `[[model]]`.
    fn of(self, k: usize, kinds: usize, span: Span) -> String {
        match self {
            Self::Sines { period_s } if k.is_multiple_of(2) => {
                format!("load = {{ shape = \"sine\", period_s = {period_s}, amplitude = 0.9 }}\n")
            }
            Self::Drift { each_s } => {
                let turns = (span.end_s() / each_s).ceil() as usize;
                let factor = |turn: usize| if turn % kinds == k { 1.0 } else { 0.1 };
                let point = |turn| format!("[{:.3}, {}]", turn as f64 * each_s, factor(turn));
                let points: Vec<String> = (0..turns.max(1)).map(point).collect();
                format!("load = {{ shape = \"steps\", points = [{}] }}\n", points.join(", "))
            }
            Self::Steady | Self::Sines { .. } | Self::Crowd { .. } => String::new(),
        }
    }
}

fn course(dice: &mut Dice) -> Course {
    match dice.unit() {
        part if part < 0.15 => Course::Sines { period_s: short(dice.log_between(1.0, 20.0)) },
        part if part < 0.4 => Course::Drift { each_s: short(dice.log_between(0.7, 8.0)) },
        part if part < 0.55 => Course::Crowd {
            models: dice.between(1.0, 4.0) as u32,
            seconds: short(dice.log_between(1.0, 8.0)),
            factor: short(dice.log_between(0.3, 5.0)),
        },
        _ => Course::Steady,
    }
}

/// One to four, with 20 to 600 models in total; where popularity drifts three to seven.
fn kinds(dice: &mut Dice, course: Course) -> Vec<Kind> {
    let count = match course {
        Course::Drift { .. } => dice.between(3.0, 8.0) as u32,
        _ => dice.between(1.0, 5.0) as u32,
    };
    let models = dice.log_between(20.0, 601.0) as u32;
    let measured = dice.chance(0.6);
    let alike = dice.chance(0.5).then(|| dice.log_between(1.0, 40.0));
    let mut kind = |_| {
        let copies = (models / count).max(1);
        let drawn = if measured { of_table(dice, copies) } else { invented(dice, copies) };
        let objective = alike.unwrap_or_else(|| dice.log_between(1.0, 40.0));
        let alone_ms = drawn.alpha_ms + drawn.beta_ms;
        Kind { slo_ms: short(alone_ms * 1.5 + 4.0 * objective), ..drawn }
    };
    (0..count).map(&mut kind).collect()
}

/// Of Clockwork's Table 1.
fn of_table(dice: &mut Dice, copies: u32) -> Kind {
    let table = zoo::clockwork();
    let lucky = (dice.unit() * table.len() as f64) as usize;
    let row = &table[lucky.min(table.len() - 1)];
    Kind {
        copies,
        alpha_ms: short(row.alpha_ms),
        beta_ms: short(row.beta_ms),
        batch_max: Some(16),
        weights_mb: row.weights_mb.unwrap_or(100.0),
        slo_ms: 0.0,
        clients: 0,
    }
}

fn invented(dice: &mut Dice, copies: u32) -> Kind {
    let alpha_ms = dice.log_between(0.05, 3.0);
    Kind {
        copies,
        alpha_ms: short(alpha_ms),
        beta_ms: short(alpha_ms * dice.log_between(0.1, 10.0)),
        batch_max: None,
        weights_mb: short(dice.log_between(5.0, 1_000.0)),
        slo_ms: 0.0,
        clients: 0,
    }
}

/// Each is left out of most scenarios.
fn extras(dice: &mut Dice, gpus: u32) -> String {
    let mut keys = String::new();
    let mut add = |line: String| keys += &(line + "\n");
    if dice.chance(0.5) {
        add("network = { ctrl_us = 300 }".to_owned());
    }
    if dice.chance(0.2) {
        let (gpu, factor) = (gpus - 1, short(dice.between(1.5, 4.0)));
        add(format!("slow_link = {{ gpu = {gpu}, factor = {factor} }}"));
    }
    if dice.chance(0.15) {
        add(format!("load_error = {}", short(dice.between(0.7, 1.6))));
    }
    if dice.chance(0.15) {
        add(format!("load_overrun_ms = {}", short(dice.log_between(0.1, 5.0))));
    }
    if dice.chance(0.15) {
        let link = LOAD_GB_PER_S * dice.log_between(0.2, 4.0);
        add(format!("load_gb_per_s = {}", short(link)));
    }
    keys
}
