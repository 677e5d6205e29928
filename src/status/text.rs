//! How a cluster fares, as people read it.

use baton_bench::load::busiest;
use baton_client::status::{
    ClusterStatus, EventStatus, GpuStatus, LoadEntry, MemberRole, MemberStatus, ModelCacheStatus,
    ModelStatus,
};
use baton_core::Alternative;

use crate::output::aligned;

/// LOADs in the text; `--json` has all that the scheduler remembers.
const LOADS_SHOWN: usize = 16;

pub(super) fn as_text(status: &ClusterStatus) -> String {
    // Of many models, those that are asked most: what is below their tables is to be seen as well.
    let (models, others) = busiest(&status.models, |model| (model.rate_rps * 1e3) as u64);
    let rows = || models.iter().copied();
    let others = match others {
        0 => String::new(),
        others => {
            format!("{others} more models with fewer requests have no row; --json has them all")
        }
    };
    let blocks = [
        summary(status),
        table(&model_columns(status), rows().map(|model| model_row(model, status))),
        others,
        table(&VARIANTS, rows().flat_map(variant_rows)),
        table(&CACHE, rows().filter_map(cache_row)),
        table(&MEMBERS, status.members.iter().map(member_row)),
        table(&GPUS[..gpu_columns(status)], status.gpus.iter().map(gpu_row)),
        table(&LOADS, status.loads.iter().rev().take(LOADS_SHOWN).map(load_row)),
        table(&EVENTS, status.events.iter().rev().map(event_row)),
    ];
    let blocks: Vec<String> = blocks.into_iter().filter(|block| !block.is_empty()).collect();
    blocks.join("\n\n") + "\n"
}

fn summary(status: &ClusterStatus) -> String {
    let scheduler = &status.scheduler;
    let mut lines = vec![format!(
        "baton {}, policy {}, up {}; figures of the last {:.0} s",
        scheduler.version,
        scheduler.policy,
        span(scheduler.uptime_s),
        scheduler.window_s
    )];
    for of in &status.subclusters {
        let serve = if of.gpus == 1 { "GPU serves" } else { "GPUs serve" };
        let others = of.rules.as_ref().filter(|rules| *rules != Alternative::Own.name());
        let follow = others.map_or(String::new(), |rules| format!("; follows the rules {rules}"));
        lines.push(format!(
            "sub-cluster {}: {} {serve}, {} needed{follow}",
            of.name, of.gpus, of.gpus_needed
        ));
    }
    lines.join("\n")
}

const MODELS: [&str; 9] =
    ["model", "sub-cluster", "queue", "rate/s", "bad %", "batch", "p50 ms", "p99 ms", "SLO ms"];
const VARIANTS: [&str; 6] = ["model", "variant", "accuracy %", "largest ms", "tasks", "batch"];
const CACHE: [&str; 6] =
    ["model", "copies", "cold tasks", "in time", "failed loads", "the last failed"];
const MEMBERS: [&str; 5] = ["member", "address", "for", "state", "tasks"];
const GPUS: [&str; 7] =
    ["slot", "backend", "sub-cluster", "busy %", "free pages", "loads", "loader busy %"];
const LOADS: [&str; 8] =
    ["ago", "load of", "slot", "why", "victims", "planned ms", "ended ms", "outcome"];
const EVENTS: [&str; 4] = ["ago", "event", "of", "why"];

fn has_variants(status: &ClusterStatus) -> bool {
    status.models.iter().any(|model| !model.variants.is_empty())
}

/// While a quota refuses something, that has a column.
fn is_refused(status: &ClusterStatus) -> bool {
    status.models.iter().any(|model| model.refused_rps > 0.0)
}

fn model_columns(status: &ClusterStatus) -> Vec<&'static str> {
    let accuracy = has_variants(status).then_some("accuracy %");
    let quota = is_refused(status).then_some("over quota/s");
    MODELS.into_iter().chain(accuracy).chain(quota).collect()
}

/// The columns behind `busy %` are of weights caches.
fn gpu_columns(status: &ClusterStatus) -> usize {
    let has_cache = status.gpus.iter().any(|gpu| gpu.pages_free.is_some());
    if has_cache { GPUS.len() } else { 4 }
}

/// As many columns as the head has. Nothing without rows.
fn table(head: &[&str], rows: impl Iterator<Item = Vec<String>>) -> String {
    let head: Vec<String> = head.iter().map(|&title| title.to_owned()).collect();
    let rows = rows.map(|row| row.into_iter().take(head.len()).collect());
    let rows: Vec<Vec<String>> = std::iter::once(head.clone()).chain(rows).collect();
    if rows.len() > 1 { aligned(&rows) } else { String::new() }
}

fn known(value: Option<f64>, digits: usize) -> String {
    value.map_or_else(|| "-".to_owned(), |value| format!("{value:.digits$}"))
}

fn variant_rows(model: &ModelStatus) -> impl Iterator<Item = Vec<String>> {
    model.variants.iter().map(|variant| {
        let (name, tasks) = (variant.name.clone(), variant.tasks.to_string());
        let batch = known(variant.mean_batch, 1);
        let [accuracy, latency] = [variant.accuracy, variant.latency_ms].map(|x| format!("{x:.2}"));
        vec![model.name.clone(), name, accuracy, latency, tasks, batch]
    })
}

fn cache_row(model: &ModelStatus) -> Option<Vec<String>> {
    let ModelCacheStatus { copies, cold, cold_in_time, failed, failure } = model.cache.as_ref()?;
    let counts = [u64::from(*copies), *cold, *cold_in_time, *failed].map(|count| count.to_string());
    let failure = failure.clone().unwrap_or_else(|| "-".to_owned());
    Some(std::iter::once(model.name.clone()).chain(counts).chain([failure]).collect())
}

/// Of the tasks of the last seconds, the mean of their variants', per cent.
fn mean_accuracy(model: &ModelStatus) -> Option<f64> {
    let tasks: u64 = model.variants.iter().map(|variant| variant.tasks).sum();
    let sum: f64 = model.variants.iter().map(|of| of.accuracy * of.tasks as f64).sum();
    (tasks > 0).then(|| sum / tasks as f64)
}

fn model_row(model: &ModelStatus, status: &ClusterStatus) -> Vec<String> {
    let accuracy = has_variants(status).then(|| known(mean_accuracy(model), 2));
    let quota = is_refused(status).then(|| format!("{:.1}", model.refused_rps));
    let mut row = vec![
        model.name.clone(),
        model.subcluster.clone(),
        model.queue.to_string(),
        format!("{:.1}", model.rate_rps),
        known(model.bad_rate.map(|rate| rate * 100.0), 2),
        known(model.mean_batch, 1),
        known(model.p50_ms, 1),
        known(model.p99_ms, 1),
        model.slo_ms.to_string(),
    ];
    row.extend(accuracy.into_iter().chain(quota));
    row
}

fn member_row(member: &MemberStatus) -> Vec<String> {
    let name = match (&member.name, member.role) {
        (Some(name), MemberRole::Backend) => format!("backend {name}"),
        (None, MemberRole::Backend) => format!("backend {}", member.number),
        (_, MemberRole::Frontend) => format!("frontend {}", member.number),
    };
    let missing = member.missing.iter().map(String::as_str);
    let state = [member.state.as_str()].into_iter().chain(missing).collect::<Vec<_>>().join(" ");
    let tasks = member.outstanding.to_string();
    vec![name, member.addr.clone(), span(member.member_s), state, tasks]
}

fn gpu_row(gpu: &GpuStatus) -> Vec<String> {
    let busy = format!("{:.0}", gpu.busy * 100.0);
    let pages = gpu.pages_free.map_or_else(|| "-".to_owned(), |pages| pages.to_string());
    let loads = gpu.loads.map_or_else(|| "-".to_owned(), |loads| loads.to_string());
    let loader = known(gpu.loader_busy.map(|busy| busy * 100.0), 0);
    let (slot, backend) = (gpu.slot.to_string(), gpu.backend.clone());
    vec![slot, backend, gpu.subcluster.clone(), busy, pages, loads, loader]
}

fn load_row(load: &LoadEntry) -> Vec<String> {
    let outcome = load.outcome.clone().unwrap_or_else(|| "under way".to_owned());
    vec![
        span(load.age_s),
        load.model.clone(),
        load.slot.to_string(),
        load.reason.clone(),
        load.victims.to_string(),
        format!("{:.1}", load.planned_ms),
        known(load.ended_ms, 1),
        outcome,
    ]
}

fn event_row(event: &EventStatus) -> Vec<String> {
    let why = match (&event.reason, event.detail.as_str()) {
        (Some(reason), "") => reason.clone(),
        (Some(reason), detail) => format!("{reason}: {detail}"),
        (None, detail) => detail.to_owned(),
    };
    vec![span(event.age_s), event.event.clone(), event.subject.clone(), why]
}

/// A time, to the two units that matter.
fn span(seconds: f64) -> String {
    let whole = seconds as u64;
    let (minutes, hours, days) = (whole / 60, whole / 3_600, whole / 86_400);
    match whole {
        0..10 => format!("{seconds:.1} s"),
        10..60 => format!("{whole} s"),
        60..3_600 => format!("{minutes} min {} s", whole % 60),
        3_600..86_400 => format!("{hours} h {} min", minutes % 60),
        _ => format!("{days} d {} h", hours % 24),
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use baton_client::status::{SchedulerStatus, SubclusterStatus, VariantStatus};

    pub(in crate::status) fn status() -> ClusterStatus {
        let scheduler = SchedulerStatus {
            version: "1.2.3".into(),
            policy: "baton".into(),
            uptime_s: 3_725.0,
            window_s: 7.4,
            ..SchedulerStatus::default()
        };
        let model = ModelStatus {
            name: "digits".into(),
            subcluster: "main".into(),
            slo_ms: 25.0,
            queue: 3,
            rate_rps: 199.96,
            bad_rate: Some(0.0123),
            p99_ms: Some(24.04),
            ..ModelStatus::default()
        };
        let lost = EventStatus {
            age_s: 3.21,
            event: "lost".into(),
            subject: "backend b".into(),
            reason: Some("silent".into()),
            detail: "nothing heard for 1000 ms".into(),
        };
        ClusterStatus {
            scheduler,
            subclusters: vec![
                SubclusterStatus {
                    name: "main".into(),
                    gpus: 4,
                    gpus_needed: 2,
                    rules: Some("own".into()),
                },
                SubclusterStatus {
                    name: "b".into(),
                    gpus: 1,
                    gpus_needed: 1,
                    rules: Some("part".into()),
                },
            ],
            models: vec![model],
            events: vec![EventStatus::default(), lost],
            ..ClusterStatus::default()
        }
    }

    #[test]
    fn the_text_says_what_is_known_and_marks_what_is_not() {
        let text = as_text(&status());
        let blocks: Vec<&str> = text.split("\n\n").collect();
        let [summary, models, events] = blocks[..] else { panic!("no empty tables: {text}") };
        assert_eq!(
            summary,
            "baton 1.2.3, policy baton, up 1 h 2 min; figures of the last 7 s\n\
             sub-cluster main: 4 GPUs serve, 2 needed\n\
             sub-cluster b: 1 GPU serves, 1 needed; follows the rules part"
        );
        let row: Vec<&str> = models.lines().nth(1).expect("a row").split_whitespace().collect();
        assert_eq!(row, ["digits", "main", "3", "200.0", "1.23", "-", "-", "24.0", "25"]);
        let newest = events.lines().nth(1).expect("a row");
        assert!(newest.starts_with("3.2 s"), "the newest comes first: {newest}");
        assert!(newest.ends_with("silent: nothing heard for 1000 ms"), "{newest}");
    }

    #[test]
    fn what_quotas_refuse_has_a_column_while_they_do() {
        let mut status = status();
        assert!(!as_text(&status).contains("over quota/s"));
        status.models[0].refused_rps = 150.0;
        let text = as_text(&status);
        let row = text.lines().find(|line| line.starts_with("digits")).expect("its row");
        assert!(text.contains("over quota/s") && row.trim_end().ends_with("150.0"), "{text}");
    }

    #[test]
    fn a_supernet_shows_what_its_answers_are_worth() {
        let mut status = status();
        assert!(!as_text(&status).contains("accuracy"));
        let variant = |name: &str, accuracy, tasks| VariantStatus {
            name: name.into(),
            accuracy,
            tasks,
            ..VariantStatus::default()
        };
        let variants = vec![variant("a", 70.0, 100), variant("b", 80.0, 300)];
        let model = |name: &str| ModelStatus { name: name.into(), ..ModelStatus::default() };
        status.models.push(ModelStatus { variants, ..model("super") });
        status.models[0].refused_rps = 7.0;
        let text = as_text(&status);
        let row = |name: &str| text.lines().find(|line| line.starts_with(name)).map(str::trim_end);
        assert!(row("model ").is_some_and(|head| head.ends_with("accuracy %  over quota/s")));
        assert!(row("super").is_some_and(|row| row.ends_with("77.50       0.0")), "{text}");
        assert!(row("digits").is_some_and(|row| row.ends_with("-           7.0")), "{text}");
    }

    #[test]
    fn of_a_thousand_models_those_that_are_asked_most_have_rows() {
        let model = |number: u32| ModelStatus {
            name: format!("m-{number}"),
            rate_rps: f64::from(number),
            cache: Some(ModelCacheStatus::default()),
            ..ModelStatus::default()
        };
        let status =
            ClusterStatus { models: (0..1_000).map(model).collect(), ..ClusterStatus::default() };
        let text = as_text(&status);
        assert!(text.contains("\n\n970 more models with fewer requests have no row; --json has"));
        let shown = |name: &str| text.lines().filter(|line| line.starts_with(name)).count();
        assert_eq!((shown("m-"), shown("m-999 "), shown("m-969 ")), (60, 2, 0), "in two tables");
        assert_eq!(text.lines().count(), 1 + 1 + 31 + 1 + 1 + 1 + 31);
    }

    #[test]
    fn slots_have_columns_of_caches_where_a_slot_has_a_cache() {
        let slot =
            |pages_free| GpuStatus { backend: "a".into(), pages_free, ..GpuStatus::default() };
        let head = |gpus| {
            let text = as_text(&ClusterStatus { gpus, ..ClusterStatus::default() });
            text.lines()
                .find(|line| line.starts_with("slot"))
                .expect("a table")
                .trim_end()
                .to_owned()
        };
        assert!(head(vec![slot(None)]).ends_with("busy %"));
        assert!(head(vec![slot(None), slot(Some(7))]).contains("free pages"));
    }

    #[test]
    fn times_have_two_units() {
        let spans = [0.04, 9.96, 59.9, 60.0, 3_599.0, 90_061.0].map(span);
        assert_eq!(spans, ["0.0 s", "10.0 s", "59 s", "1 min 0 s", "59 min 59 s", "1 d 1 h"]);
    }
}
