//! SuperServe's set-ups as scenario files. Profile P0 stands in for the paper's table of latencies.

use std::fmt::Write as _;

use super::super::precision::Precision;

/// Accuracy in per cent, α and β in ms. The paper prints its table as a picture only; these lines satisfy what its text says.
pub(super) const P0: [(f64, f64, f64); 6] = [
    (73.82, 0.4, 1.0),
    (76.69, 0.606_667, 1.293_333),
    (77.64, 0.746_667, 1.553_333),
    (78.25, 0.953_333, 1.746_667),
    (79.44, 1.326_667, 2.273_333),
    (80.16, 1.74, 2.86),
];
/// Tasks of a batch at most (footnote 4).
pub(super) const BATCH_MAX: u32 = 16;

/// Fig. 10's: 6,400 in the mean.
const SPIKE_RPS: f64 = 8_750.0;
const BETWEEN_SPIKES_RPS: f64 = (64_000.0 - SPIKE_RPS) / 9.0;
/// Fig. 11a's.
const LOST_EVERY_S: f64 = 12.0;
const LOST: u32 = 4;

/// How tasks come.
#[derive(Clone, Debug)]
pub(super) enum Load {
    /// A constant base beside gamma arrivals of this CV².
    Bursty { base_rps: f64, rate_rps: f64, cv2: f64 },
    /// One gamma process of this CV²; 0 is constant.
    Steady { rate_rps: f64, cv2: f64 },
    /// 2,500 tasks/s for 20 s, then `tau` more in each second up to `to_rps`, of a CV² of 8.
    Ramp { to_rps: f64, tau: f64 },
    /// A mean of 6,400 tasks/s with a second of 8,750 in every ten, Poisson.
    Spikes,
}

/// One set-up.
#[derive(Clone, Debug)]
pub(super) struct Setup {
    pub(super) load: Load,
    pub(super) gpus: u32,
    pub(super) slo_ms: f64,
    /// Every time of P0 is multiplied by this.
    pub(super) slower: f64,
    /// A GPU is lost every twelve seconds.
    pub(super) faults: bool,
}

const fn setup(load: Load) -> Setup {
    Setup { load, gpus: 8, slo_ms: 36.0, slower: 1.0, faults: false }
}

impl Setup {
    pub(super) const fn bursty(base_rps: f64, more_rps: f64, cv2: f64) -> Self {
        setup(Load::Bursty { base_rps, rate_rps: base_rps + more_rps, cv2 })
    }

    pub(super) const fn steady(rate_rps: f64, cv2: f64) -> Self {
        setup(Load::Steady { rate_rps, cv2 })
    }

    pub(super) const fn ramp(to_rps: f64, tau: f64) -> Self {
        setup(Load::Ramp { to_rps, tau })
    }

    pub(super) const fn spikes() -> Self {
        setup(Load::Spikes)
    }

    pub(super) const fn on(self, gpus: u32) -> Self {
        Self { gpus, ..self }
    }

    pub(super) const fn within(self, slo_ms: f64) -> Self {
        Self { slo_ms, ..self }
    }

    pub(super) const fn slower(self, slower: f64) -> Self {
        Self { slower, ..self }
    }

    pub(super) const fn with_faults(self) -> Self {
        Self { faults: true, ..self }
    }

    /// Simulated seconds, of which the first is not counted.
    pub(super) fn seconds(&self) -> f64 {
        match self.load {
            Load::Ramp { .. } => 60.0,
            Load::Bursty { .. } | Load::Steady { .. } if !self.faults => 30.0,
            _ => 60.0,
        }
    }

    /// Tasks per second over the seconds that count.
    pub(super) fn rate_rps(&self) -> f64 {
        match self.load {
            Load::Bursty { rate_rps, .. } | Load::Steady { rate_rps, .. } => rate_rps,
            Load::Ramp { to_rps, tau } => {
                let rise_s = (to_rps - 2_500.0) / tau;
                let rest_s = 40.0 - rise_s;
                let tasks = 2_500.0 * 19.0 + (2_500.0 + to_rps) / 2.0 * rise_s + to_rps * rest_s;
                tasks / 59.0
            }
            Load::Spikes => 6_400.0,
        }
    }

    /// Tasks per second at a moment.
    pub(super) fn rate_at(&self, at_s: f64) -> f64 {
        match self.load {
            Load::Bursty { rate_rps, .. } | Load::Steady { rate_rps, .. } => rate_rps,
            Load::Ramp { to_rps, tau } => to_rps.min(2_500.0 + tau * (at_s - 20.0).max(0.0)),
            Load::Spikes if at_s % 10.0 >= 9.0 => SPIKE_RPS,
            Load::Spikes => BETWEEN_SPIKES_RPS,
        }
    }

    /// GPUs at a moment.
    pub(super) fn gpus_at(&self, at_s: f64) -> u32 {
        let lost = if self.faults { (at_s / LOST_EVERY_S) as u32 } else { 0 };
        self.gpus - lost.min(LOST)
    }

    /// The scenario file, of all variants or of one alone.
    pub(super) fn scenario(&self, precision: Precision, alone: Option<usize>, seed: u32) -> String {
        // A smoke run has everything that a full one has, in a thousandth of the time.
        let scale = if precision == Precision::Smoke { 1e-3 } else { 1.0 };
        let duration_s = (self.seconds() - 1.0) * scale;
        let Self { gpus, slo_ms, slower, .. } = self;
        let mut text = format!(
            "gpus = {gpus}\nduration_s = {duration_s}\nwarmup_s = {scale}\nseed = {seed}\n"
        );
        text.push_str(&self.arrival(scale));
        if self.faults {
            for lost in 1..=LOST {
                let (at_s, gpu) = (f64::from(lost) * LOST_EVERY_S * scale, gpus - lost);
                let event =
                    format!("[[gpu_event]]\nat_s = {at_s}\ngpus = [{gpu}]\nkind = \"loss\"\n");
                text.push_str(&event);
            }
        }
        let _ = writeln!(
            text,
            "[[model]]\nname = \"supernet\"\nslo_ms = {slo_ms}\nbatch_max = {BATCH_MAX}"
        );
        let chosen = |at: usize| alone.is_none_or(|alone| alone == at);
        for (_, (accuracy, alpha_ms, beta_ms)) in
            P0.into_iter().enumerate().filter(|&(at, _)| chosen(at))
        {
            let [alpha_ms, beta_ms] = [alpha_ms, beta_ms].map(|ms| ms * slower);
            let _ = writeln!(
                text,
                "[[model.variant]]\nname = \"{accuracy:.2}\"\naccuracy = {accuracy}\n\
                 alpha_ms = {alpha_ms}\nbeta_ms = {beta_ms}"
            );
        }
        text
    }

    fn arrival(&self, scale: f64) -> String {
        let gamma =
            |cv2: f64| format!("arrival = {{ process = \"gamma\", shape = {} }}\n", 1.0 / cv2);
        match self.load {
            Load::Bursty { base_rps, cv2, .. } => format!(
                "arrival = {{ process = \"bursty\", base_rps = {base_rps}, shape = {} }}\n",
                1.0 / cv2
            ),
            Load::Steady { cv2, .. } if cv2 > 0.0 => gamma(cv2),
            Load::Steady { .. } => "arrival = { process = \"constant\" }\n".to_owned(),
            Load::Ramp { to_rps, tau } => {
                let (from_s, to_s) = (20.0 * scale, (20.0 + (to_rps - 2_500.0) / tau) * scale);
                let load = "load = { shape = \"ramp\", points = ";
                format!("{}{load}[[{from_s}, 2500], [{to_s}, {to_rps}]] }}\n", gamma(8.0))
            }
            Load::Spikes => {
                let (usual, spike) = (BETWEEN_SPIKES_RPS, SPIKE_RPS);
                let point = |tenth: u32| {
                    let at_s = f64::from(tenth * 10);
                    format!("[{}, {usual:.1}], [{}, {spike}]", at_s * scale, (at_s + 9.0) * scale)
                };
                let points: Vec<String> = (0..6).map(point).collect();
                let points = points.join(", ");
                format!("{}load = {{ shape = \"steps\", points = [{points}] }}\n", gamma(1.0))
            }
        }
    }
}
