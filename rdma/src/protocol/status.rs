//! How a cluster fares, as its scheduler says: the records that [`StatusPart`](crate::wire::StatusPart)s carry, one JSON
//! object a line, and the whole that a reader puts together from them.
//!
//! `docs/operating.md`, *The state of a cluster*, says what each figure means. A later build may add keys and kinds of
//! records: a reader leaves out those that it does not know, and takes a key that is missing for nothing.

use serde::{Deserialize, Serialize};

/// Bytes that the records of one part may have together.
pub const PART_MAX: usize = 24 * 1024;
/// Bytes of a text in a record; more are cut off. Every record then fits into a part, however it is escaped.
pub const TEXT_MAX: usize = 255;

/// One line of a part.
#[derive(Clone, PartialEq, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Record {
    /// The scheduler itself. Comes first.
    Scheduler(SchedulerStatus),
    /// A sub-cluster.
    Subcluster(SubclusterStatus),
    /// A model that is served.
    Model(ModelStatus),
    /// A member.
    Member(MemberStatus),
    /// A GPU slot.
    Gpu(GpuStatus),
    /// A LOAD.
    Load(LoadEntry),
    /// Something that has happened.
    Event(EventStatus),
}

/// The scheduler itself.
#[derive(Clone, PartialEq, Default, Debug, Serialize, Deserialize)]
#[serde(default)]
pub struct SchedulerStatus {
    /// Its build's version.
    pub version: String,
    /// The newest version of the wire protocol that it speaks.
    pub protocol: u16,
    /// The policy's name.
    pub policy: String,
    /// For how long it has served.
    pub uptime_s: f64,
    /// How far back rates, shares and quantiles look.
    pub window_s: f64,
    /// GPUs that the traffic needs, over all sub-clusters.
    pub gpus_needed: u32,
    /// ModelThreads.
    pub model_threads: u32,
    /// Events since the start; those that are not listed are forgotten.
    pub events_total: u64,
}

/// A sub-cluster.
#[derive(Clone, PartialEq, Default, Debug, Serialize, Deserialize)]
#[serde(default)]
pub struct SubclusterStatus {
    /// Its name.
    pub name: String,
    /// GPU slots that serve it now.
    pub gpus: u32,
    /// GPUs that its traffic needs.
    pub gpus_needed: u32,
    /// Which rules its models follow under the policy `baton`; `None` under another.
    pub rules: Option<String>,
}

/// A model that is served.
#[derive(Clone, PartialEq, Default, Debug, Serialize, Deserialize)]
#[serde(default)]
pub struct ModelStatus {
    /// Its name.
    pub name: String,
    /// The sub-cluster that serves it.
    pub subcluster: String,
    /// Its objective.
    pub slo_ms: f64,
    /// Tasks that wait for a batch.
    pub queue: u64,
    /// Requests that arrive.
    pub rate_rps: f64,
    /// Of these, those that a quota refused.
    pub refused_rps: f64,
    /// Of the tasks that ended, those that were dropped, failed or executed too late. `None`: none ended.
    pub bad_rate: Option<f64>,
    /// Tasks in an executed batch. `None`: none was executed.
    pub mean_batch: Option<f64>,
    /// From a request's arrival at the scheduler to the end of its batch: the median.
    pub p50_ms: Option<f64>,
    /// The same, of which 1 % take longer.
    pub p99_ms: Option<f64>,
    /// The ModelThread on which it lives.
    pub model_thread: u32,
    /// Its variants, the cheapest first; empty for a model without any.
    pub variants: Vec<VariantStatus>,
    /// Where slots have not room for every model: how it fares there.
    pub cache: Option<ModelCacheStatus>,
}

/// A model in a sub-cluster with caches of weights.
#[derive(Clone, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
#[serde(default)]
pub struct ModelCacheStatus {
    /// Slots that hold it.
    pub copies: u32,
    /// Tasks that came while no slot held it, since the scheduler's start.
    pub cold: u64,
    /// Of these, those whose batch ended in time.
    pub cold_in_time: u64,
    /// LOADs of it that failed, since the scheduler's start.
    pub failed: u64,
    /// Why the last of these did, as [`LoadEntry::outcome`] says it.
    pub failure: Option<String>,
}

/// A variant of a model.
#[derive(Clone, PartialEq, Default, Debug, Serialize, Deserialize)]
#[serde(default)]
pub struct VariantStatus {
    /// Its name.
    pub name: String,
    /// Per cent of its answers that are right.
    pub accuracy: f64,
    /// Of the largest batch: what the slowest backend measured, or else the cluster file says.
    pub latency_ms: f64,
    /// Tasks in batches that it has executed.
    pub tasks: u64,
    /// Tasks in such a batch. `None`: it has executed none.
    pub mean_batch: Option<f64>,
}

/// What a member is.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum MemberRole {
    /// An application.
    #[default]
    Frontend,
    /// A process with GPU slots.
    Backend,
}

/// A member.
#[derive(Clone, PartialEq, Default, Debug, Serialize, Deserialize)]
#[serde(default)]
pub struct MemberStatus {
    /// What it is.
    pub role: MemberRole,
    /// Its number among those of its role.
    pub number: u32,
    /// A backend's name; a frontend has none.
    pub name: Option<String>,
    /// Of a frontend, where backends pull inputs from; of a backend, where its connection comes from.
    pub addr: String,
    /// For how long it has been a member.
    pub member_s: f64,
    /// `serving`, `joining` (not connected everywhere), `loading` (models are missing) or `draining`.
    pub state: String,
    /// Tasks: of a frontend, submitted and without an outcome from the scheduler; of a backend, in batches it has.
    pub outstanding: u64,
    /// Of a backend: its GPU slots.
    pub gpus: Option<u32>,
    /// Of a backend: its sub-cluster.
    pub subcluster: Option<String>,
    /// Of a backend that is `loading`: the first models of those that are missing.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub missing: Vec<String>,
}

/// A GPU slot.
#[derive(Clone, PartialEq, Default, Debug, Serialize, Deserialize)]
#[serde(default)]
pub struct GpuStatus {
    /// Its number.
    pub slot: u32,
    /// The backend that has it.
    pub backend: String,
    /// The sub-cluster that it serves.
    pub subcluster: String,
    /// The share of the time in which it executed batches.
    pub busy: f64,
    /// Of a slot with a cache of weights: pages that no model takes.
    pub pages_free: Option<u32>,
    /// Of such a slot: LOADs that have ended well since the scheduler's start.
    pub loads: Option<u64>,
    /// Of such a slot: the share of the time in which weights were copied to it.
    pub loader_busy: Option<f64>,
}

/// A LOAD: weights that were to come to a GPU slot.
#[derive(Clone, PartialEq, Default, Debug, Serialize, Deserialize)]
#[serde(default)]
pub struct LoadEntry {
    /// How long ago it was ordered.
    pub age_s: f64,
    /// What was to be loaded.
    pub model: String,
    /// Where.
    pub slot: u32,
    /// Why: `waiting` (tasks waited, and no slot had it), `expected` (tasks come that cannot wait for a LOAD), `busy` (another
    /// slot that has it has more to do), `losing` (the model loses tasks), `priority` (Clockwork's rule).
    pub reason: String,
    /// Models that left the slot for it.
    pub victims: u32,
    /// In how much time the weights were to be there.
    pub planned_ms: f64,
    /// After how much time it had ended. `None`: it is under way.
    pub ended_ms: Option<f64>,
    /// Of one that ended well: how long the copy took, as the backend measured it.
    pub copied_ms: Option<f64>,
    /// `loaded`, `late` (it could not begin in time), `lost` (its backend is gone); or why it failed: `no_pages`, `unreadable`,
    /// `different`, `hung`, `unsent` or `failed`. `None`: it is under way.
    pub outcome: Option<String>,
}

/// Something that has happened.
#[derive(Clone, PartialEq, Default, Debug, Serialize, Deserialize)]
#[serde(default)]
pub struct EventStatus {
    /// How long ago.
    pub age_s: f64,
    /// `joined`, `left`, `lost`, `model_added`, `model_changed` or `model_removed`.
    pub event: String,
    /// Of whom: `frontend 3`, `backend gpu-a`, `model resnet50`.
    pub subject: String,
    /// Of a loss: `silent`, `unauthorised`, `connection_broken`, `protocol`, `not_reading` or `refused`.
    pub reason: Option<String>,
    /// More about it, in words.
    pub detail: String,
}

/// All of it.
#[derive(Clone, PartialEq, Default, Debug, Serialize, Deserialize)]
pub struct ClusterStatus {
    /// The scheduler.
    #[serde(flatten)]
    pub scheduler: SchedulerStatus,
    /// Its sub-clusters.
    pub subclusters: Vec<SubclusterStatus>,
    /// The models that are served, by number.
    pub models: Vec<ModelStatus>,
    /// Who is joined: frontends, then backends.
    pub members: Vec<MemberStatus>,
    /// Their GPU slots.
    pub gpus: Vec<GpuStatus>,
    /// The last LOADs, in the order in which they were ordered.
    pub loads: Vec<LoadEntry>,
    /// The last events, oldest first.
    pub events: Vec<EventStatus>,
}

impl Record {
    /// The line that says so, with its end.
    pub fn line(&self) -> String {
        let mut line = serde_json::to_string(self).expect("texts and numbers have a JSON form");
        line.push('\n');
        line
    }
}

impl ClusterStatus {
    /// Takes in a part's records.
    ///
    /// # Errors
    /// A line that is no record of any build, in words.
    pub fn take_in(&mut self, part: &str) -> Result<(), String> {
        part.lines().try_for_each(|line| self.take_line(line))
    }

    fn take_line(&mut self, line: &str) -> Result<(), String> {
        let line: Line = serde_json::from_str(line).map_err(|error| {
            format!("the scheduler's answer has a line that is no record ({error}): {line}")
        })?;
        self.scheduler = line.scheduler.unwrap_or_else(|| std::mem::take(&mut self.scheduler));
        self.subclusters.extend(line.subcluster);
        self.models.extend(line.model);
        self.members.extend(line.member);
        self.gpus.extend(line.gpu);
        self.loads.extend(line.load);
        self.events.extend(line.event);
        Ok(())
    }
}

/// A [`Record`] as it is read: kinds that this build does not know are left out.
#[derive(Deserialize)]
struct Line {
    scheduler: Option<SchedulerStatus>,
    subcluster: Option<SubclusterStatus>,
    model: Option<ModelStatus>,
    member: Option<MemberStatus>,
    gpu: Option<GpuStatus>,
    load: Option<LoadEntry>,
    event: Option<EventStatus>,
}

/// The beginning of a text, if it is longer than [`TEXT_MAX`].
pub fn shortened(text: &str) -> String {
    text[..text.floor_char_boundary(TEXT_MAX)].to_owned()
}

/// To three digits behind the point: more are noise.
pub fn rounded(value: f64) -> f64 {
    (value * 1_000.0).round() / 1_000.0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_three_digits_behind_the_point() {
        assert_eq!(
            [0.0, 2.5, 1.234_4, 1.234_5, 99.999_6].map(rounded),
            [0.0, 2.5, 1.234, 1.235, 100.0]
        );
        assert_eq!(rounded(-0.000_6), -0.001);
    }

    fn gpu(slot: u32) -> GpuStatus {
        GpuStatus {
            slot,
            backend: "a \"b\"\n".into(),
            subcluster: "s".into(),
            busy: 0.25,
            pages_free: None,
            loads: None,
            loader_busy: None,
        }
    }

    #[test]
    fn what_is_written_is_read_again() {
        let scheduler = SchedulerStatus { version: "9".into(), ..SchedulerStatus::default() };
        let model = ModelStatus { p99_ms: Some(1.5), ..ModelStatus::default() };
        let records = [
            Record::Scheduler(scheduler.clone()),
            Record::Subcluster(SubclusterStatus::default()),
            Record::Model(model.clone()),
            Record::Member(MemberStatus::default()),
            Record::Gpu(gpu(3)),
            Record::Event(EventStatus::default()),
        ];
        let text: String = records.iter().map(Record::line).collect();
        let mut status = ClusterStatus::default();
        status.take_in(&text).expect("they are records");
        status.take_in(&Record::Gpu(gpu(4)).line()).expect("it is a record");
        assert_eq!((status.scheduler, status.models), (scheduler, vec![model]));
        assert_eq!(status.gpus, [gpu(3), gpu(4)]);
        assert_eq!(
            (status.subclusters.len(), status.members.len(), status.events.len()),
            (1, 1, 1)
        );
    }

    #[test]
    fn what_a_newer_build_adds_is_left_out() {
        let mut status = ClusterStatus::default();
        let part = "{\"weather\":{\"rain\":true}}\n{\"gpu\":{\"slot\":7,\"watts\":300}}\n";
        status.take_in(part).expect("a newer build says more");
        assert_eq!(status.gpus, [GpuStatus { slot: 7, ..GpuStatus::default() }]);
        for bad in ["{", "[]", "{\"gpu\":{\"slot\":-1}}"] {
            let error = status.take_in(bad).expect_err("that is none");
            assert!(error.contains(bad), "{error}");
        }
    }

    #[test]
    fn the_longest_record_fits_into_a_part() {
        let text = shortened(&"\u{1}".repeat(4_000));
        assert_eq!(text.len(), TEXT_MAX);
        let event = EventStatus {
            subject: text.clone(),
            reason: Some(text.clone()),
            detail: text.clone(),
            event: text,
            ..EventStatus::default()
        };
        assert!(Record::Event(event).line().len() <= PART_MAX);
        assert_eq!(shortened(&"ä".repeat(200)).len(), TEXT_MAX - 1, "no half characters");
    }
}
