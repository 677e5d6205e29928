//! Models with variants, alone, several on the same slots, or beside a model without.

use std::fmt::Write as _;

use super::super::draw::{Dice, short};
use super::super::text;
use super::draw::{Sketch, Span, arrival};

/// See the module documentation.
#[derive(Debug)]
pub(super) struct Supernets {
    gpus: u32,
    supernets: Vec<Supernet>,
    /// A model without variants: α, β, objective, ms, and its weight beside the supernets' together.
    beside: Option<[f64; 4]>,
    arrival: String,
    course: Option<Course>,
    /// Slots that are lost for a third of the measured span.
    lost_gpus: u32,
    load: f64,
}

#[derive(Debug)]
struct Supernet {
    slo_ms: f64,
    batch_max: u32,
    weight: f64,
    /// Accuracy, per cent, α and β, ms.
    variants: Vec<[f64; 3]>,
    /// What a part of the tasks asks for, per cent, and that part.
    asking: Option<[f64; 2]>,
}

/// How the load changes, by factors.
#[derive(Clone, Copy, Debug)]
enum Course {
    Step(f64),
    Ramp(f64),
    Sine { period_s: f64, amplitude: f64 },
}

impl Supernets {
    pub(super) fn draw(dice: &mut Dice) -> Self {
        let gpus = dice.log_between(1.0, 17.0) as u32;
        let count = [1, 1, 2, 3][(dice.unit() * 4.0).min(3.0) as usize];
        let supernets = (0..count).map(|_| Supernet::draw(dice)).collect();
        let beside = dice.chance(0.25).then(|| {
            let alpha_ms = dice.log_between(0.1, 3.0);
            let beta_ms = alpha_ms * dice.log_between(0.1, 6.0);
            let slo_ms = (alpha_ms + beta_ms) * dice.log_between(1.5, 12.0);
            [alpha_ms, beta_ms, slo_ms, dice.log_between(0.1, 3.0)].map(short)
        });
        Self {
            gpus,
            supernets,
            beside,
            arrival: arrival(dice, 0.5),
            course: dice.chance(0.3).then(|| course(dice)),
            lost_gpus: if dice.chance(0.15) { gpus / 2 } else { 0 },
            load: short(dice.log_between(0.1, 1.5)),
        }
    }
}

impl Supernet {
    fn draw(dice: &mut Dice) -> Self {
        let count = dice.between(2.0, 9.0) as u32;
        let alpha_ms = dice.log_between(0.05, 2.0);
        let beta_ms = alpha_ms * dice.log_between(0.2, 5.0);
        let dearest = dice.log_between(1.5, 12.0);
        let (least, gain) = (dice.between(55.0, 75.0), dice.between(2.0, 18.0));
        // Accuracy gains less and less from time.
        let bend = dice.between(0.3, 0.9);
        let variant = |v: u32| {
            let part = f64::from(v) / f64::from(count - 1);
            let times = dearest.powf(part);
            [least + gain * part.powf(bend), alpha_ms * times, beta_ms * times].map(short)
        };
        let variants: Vec<[f64; 3]> = (0..count).map(variant).collect();
        let slo_ms = short((alpha_ms + beta_ms) * dice.log_between(1.4, 30.0));
        let asked = variants[(dice.unit() * f64::from(count - 1)) as usize][0];
        let asking = [short(asked - 0.1), short(dice.between(0.05, 0.5))];
        Self {
            slo_ms,
            batch_max: [8, 16, 32][(dice.unit() * 3.0).min(2.0) as usize],
            weight: short(dice.log_between(0.3, 3.0)),
            variants,
            asking: dice.chance(0.2).then_some(asking),
        }
    }

    fn text(&self, name: &str) -> String {
        let Self { slo_ms, batch_max, weight, .. } = self;
        let mut text = format!(
            "\n[[model]]\nname = \"{name}\"\nslo_ms = {slo_ms}\nbatch_max = {batch_max}\n\
             weight = {weight}\n"
        );
        let mut add = |line: String| writeln!(text, "{line}").expect("memory takes every line");
        if let Some([accuracy_min, share]) = self.asking {
            add(format!("accuracy_min = {accuracy_min}\naccuracy_min_share = {share}"));
        }
        for (v, [accuracy, alpha_ms, beta_ms]) in self.variants.iter().enumerate() {
            add(format!("\n[[model.variant]]\nname = \"v{v}\"\naccuracy = {accuracy}"));
            add(format!("alpha_ms = {alpha_ms}\nbeta_ms = {beta_ms}"));
        }
        text
    }

    fn description(&self) -> String {
        let (first, last) = (self.variants[0], self.variants[self.variants.len() - 1]);
        let asking = self.asking.map(|[least, part]| format!(", {part} ask for {least} %"));
        format!(
            "{} variants {} % {}b+{} to {} % {}b+{} ≤ {} in {} ms{}",
            self.variants.len(),
            first[0],
            first[1],
            first[2],
            last[0],
            last[1],
            last[2],
            self.batch_max,
            self.slo_ms,
            asking.unwrap_or_default()
        )
    }
}

impl Sketch for Supernets {
    fn load(&self) -> f64 {
        self.load
    }

    fn text(&self, span: Span) -> String {
        let Self { gpus, arrival, .. } = self;
        let course = self.course.map(|course| course.text(span)).unwrap_or_default();
        let mut text = format!("gpus = {gpus}\n{arrival}{course}");
        for (s, supernet) in self.supernets.iter().enumerate() {
            text += &supernet.text(&format!("super{s}"));
        }
        if let Some([alpha_ms, beta_ms, slo_ms, weight]) = self.beside {
            let weights: f64 = self.supernets.iter().map(|supernet| supernet.weight).sum();
            text += &format!(
                "\n[[model]]\nname = \"plain\"\nalpha_ms = {alpha_ms}\nbeta_ms = {beta_ms}\n\
                 slo_ms = {slo_ms}\nweight = {:.3}\n",
                weight * weights
            );
        }
        let at = |part| span.at(part);
        text::events(self.lost_gpus, at).into_iter().fold(text, |text, event| text + &event + "\n")
    }

    fn description(&self) -> String {
        let mut parts = vec![format!("{} GPUs", self.gpus)];
        parts.extend(self.supernets.iter().map(Supernet::description));
        parts.extend(self.beside.map(|[alpha, beta, slo, weight]| {
            format!("{weight} × as many for {alpha}b+{beta} in {slo} ms")
        }));
        parts.extend((!self.arrival.is_empty()).then(|| self.arrival.trim_end().to_owned()));
        parts.extend(self.course.map(|course| format!("{course:?}")));
        parts.extend((self.lost_gpus > 0).then(|| format!("{} lost for a while", self.lost_gpus)));
        format!("{}; load {}", parts.join("; "), self.load)
    }
}

impl Course {
    fn text(self, span: Span) -> String {
        let (from, to) = (span.at(1.0 / 3.0), span.at(2.0 / 3.0));
        match self {
            Self::Step(factor) => format!(
                "load = {{ shape = \"steps\", points = [[0, 1], [{from:.3}, {factor}], [{to:.3}, 1]] }}\n"
            ),
            Self::Ramp(factor) => format!(
                "load = {{ shape = \"ramp\", points = [[{:.3}, 1], [{:.3}, {factor}]] }}\n",
                span.warmup_s,
                span.end_s()
            ),
            Self::Sine { period_s, amplitude } => format!(
                "load = {{ shape = \"sine\", period_s = {period_s}, amplitude = {amplitude} }}\n"
            ),
        }
    }
}

fn course(dice: &mut Dice) -> Course {
    match dice.unit() {
        part if part < 0.4 => Course::Step(short(dice.log_between(1.5, 5.0))),
        part if part < 0.7 => Course::Ramp(short(dice.log_between(0.25, 4.0))),
        _ => Course::Sine {
            period_s: short(dice.log_between(1.0, 20.0)),
            amplitude: short(dice.between(0.3, 0.9)),
        },
    }
}
