//! A drawn scenario as a scenario file, and in one line.

use std::fmt::Write as _;

use super::draw::{Process, Sketch};
use super::faults::{Course, Straggling};
use super::spans::Spans;

/// The file's text. `title` is its first line.
pub(super) fn scenario(sketch: &Sketch, spans: &Spans, title: &str) -> String {
    let Spans { warmup_s, duration_s, .. } = spans;
    let mut text = format!(
        "# {title}\ngpus = {}\nduration_s = {duration_s}\nwarmup_s = {warmup_s}\n",
        sketch.gpus
    );
    let mut add = |line: String| writeln!(text, "{line}").expect("memory takes every line");
    match sketch.process {
        Process::Poisson => {}
        Process::Constant => add("arrival = { process = \"constant\" }".to_owned()),
        Process::Gamma { shape } => {
            add(format!("arrival = {{ process = \"gamma\", shape = {shape} }}"));
        }
    }
    if let Some(s) = sketch.zipf {
        add(format!("popularity = {{ kind = \"zipf\", s = {s} }}"));
    }
    extras(sketch, spans).into_iter().for_each(&mut add);
    for (k, kind) in sketch.kinds.iter().enumerate() {
        add(format!("\n[[model]]\nname = \"kind{k}\"\nalpha_ms = {}", kind.alpha_ms));
        add(format!("beta_ms = {}\nslo_ms = {}", kind.beta_ms, kind.slo_ms));
        add(format!("copies = {}", kind.copies));
    }
    let at = |part| warmup_s + part * duration_s;
    events(sketch.extras.lost_gpus, at).into_iter().for_each(&mut add);
    text
}

/// Keys of what is left out of most scenarios.
fn extras(sketch: &Sketch, spans: &Spans) -> Vec<String> {
    let extras = &sketch.extras;
    let mut lines = Vec::new();
    lines.extend(extras.course.map(|course| load(course, spans)));
    if let Some((ctrl_us, data_us)) = extras.network_us {
        lines.push(format!("network = {{ ctrl_us = {ctrl_us}, data_us_per_task = {data_us} }}"));
    }
    for (key, value) in
        [("message_lag_us", extras.message_lag_us), ("overrun_ms", extras.overrun_ms)]
    {
        lines.extend((value > 0.0).then(|| format!("{key} = {value}")));
    }
    lines.extend(extras.stragglers.map(|straggling| match straggling {
        Straggling::Anywhere { factor, fraction } => {
            format!("stragglers = {{ factor = {factor}, fraction = {fraction} }}")
        }
        Straggling::OneSlot { factor } => {
            format!("stragglers = {{ factor = {factor}, gpus = [0] }}")
        }
    }));
    if extras.profile_spread > 0.0 {
        lines.push(format!("profile_error = {{ spread = {} }}", extras.profile_spread));
    }
    lines
}

fn load(course: Course, spans: &Spans) -> String {
    let Spans { warmup_s, duration_s, .. } = spans;
    let at = |part: f64| warmup_s + part * duration_s;
    match course {
        Course::Step { factor } => {
            let (second, last) = (at(1.0 / 3.0), at(2.0 / 3.0));
            format!(
                "load = {{ shape = \"steps\", points = [[0, 1], [{second:.3}, {factor}], \
                 [{last:.3}, 1]] }}"
            )
        }
        Course::Ramp { factor } => format!(
            "load = {{ shape = \"ramp\", points = [[{warmup_s}, 1], [{:.3}, {factor}]] }}",
            at(1.0)
        ),
        Course::Sine { periods, amplitude } => {
            let period_s = duration_s / periods;
            format!(
                "load = {{ shape = \"sine\", period_s = {period_s:.3}, amplitude = {amplitude} }}"
            )
        }
    }
}

/// The first slots are lost for a third of the measured span, of which `at` says the moments by their parts.
pub(super) fn events(lost_gpus: u32, at: impl Fn(f64) -> f64) -> Vec<String> {
    let slots: Vec<String> = (0..lost_gpus).map(|slot| slot.to_string()).collect();
    if slots.is_empty() {
        return Vec::new();
    }
    let event = |part: f64, kind: &str| {
        let (at_s, slots) = (at(part), slots.join(", "));
        format!("\n[[gpu_event]]\nat_s = {at_s:.3}\ngpus = [{slots}]\nkind = \"{kind}\"")
    };
    vec![event(1.0 / 3.0, "loss"), event(2.0 / 3.0, "join")]
}

/// One line: `4 GPUs, 12 models: 10 × 0.1b+2 ms in 30, …; Zipf 0.9; …`.
pub(super) fn description(sketch: &Sketch, spans: &Spans) -> String {
    let kind = |kind: &super::draw::Kind| {
        let (alpha, beta, slo) = (kind.alpha_ms, kind.beta_ms, kind.slo_ms);
        format!(
            "{} × {alpha}b+{beta} in {slo} ms (SLO/ℓ(1) {:.1}, β/α {:.2})",
            kind.copies,
            slo / kind.alone_ms(),
            beta / alpha
        )
    };
    let kinds: Vec<String> = sketch.kinds.iter().map(kind).collect();
    let mut parts = vec![format!("{} GPUs", sketch.gpus), kinds.join(" + ")];
    parts.extend(sketch.zipf.map(|s| format!("Zipf {s}")));
    match sketch.process {
        Process::Poisson => {}
        Process::Constant => parts.push("evenly spaced".to_owned()),
        Process::Gamma { shape } => parts.push(format!("Gamma {shape}")),
    }
    parts.extend(extras(sketch, spans));
    if sketch.extras.lost_gpus > 0 {
        parts.push(format!("{} GPUs lost for a third of the time", sketch.extras.lost_gpus));
    }
    parts.push(format!("{} s", spans.duration_s));
    parts.join("; ")
}
