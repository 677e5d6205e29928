//! What one model's `config.pbtxt` means for Baton, and what of it has no counterpart.

use std::collections::BTreeMap;

use super::Note;
use super::text::{Field, Value};
use crate::GPUS_PER_BACKEND_MAX;

/// What executes a model.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum Place {
    Cpu,
    Gpu,
}

impl Place {
    /// Of its sub-cluster and backend.
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Cpu => "cpu",
            Self::Gpu => "gpu",
        }
    }
}

/// A model that can be served.
#[derive(Clone, PartialEq, Debug)]
pub(super) struct Config {
    pub(super) name: String,
    /// Below the folder of its version.
    pub(super) file_name: String,
    /// `None`: the newest.
    pub(super) version: Option<u64>,
    pub(super) place: Place,
    /// GPU slots, or those of the CPU engine.
    pub(super) slots: u32,
    /// 0 says that the shapes include a batch dimension, if there is one.
    pub(super) batch_max: u32,
    pub(super) slo_ms: Option<f64>,
    pub(super) queue_capacity: Option<u64>,
    /// Shapes by tensor; −1 where an extent is open.
    pub(super) shapes: BTreeMap<String, Vec<i64>>,
}

/// Reads the fields; `folder` names a model that has no name. `None` where it cannot be served: a note says why.
pub(super) fn read(fields: &[Field], folder: &str, cpu: bool) -> (Option<Config>, Vec<Note>) {
    let named = find(fields, "name").and_then(text).filter(|name| !name.is_empty());
    let mut reader = Reader {
        config: Config {
            name: named.unwrap_or(folder).to_owned(),
            file_name: "model.onnx".to_owned(),
            version: None,
            place: if cpu { Place::Cpu } else { Place::Gpu },
            slots: 0,
            batch_max: 0,
            slo_ms: None,
            queue_capacity: None,
            shapes: BTreeMap::new(),
        },
        notes: Vec::new(),
        refused: false,
    };
    if let (Some(field), true) = (find(fields, "name"), reader.config.name != folder) {
        let text = format!(
            "name is not the folder's, `{folder}`, for which Triton refuses the model; it is served by this name, so rename it if clients say the folder's"
        );
        reader.at(field, &text);
    }
    for field in fields {
        reader.field(field);
    }
    let groups: Vec<&Field> =
        fields.iter().filter(|field| field.name == "instance_group").collect();
    reader.instances(&groups, cpu);
    // Without the key Triton asks the model file, as Baton does.
    let is_stated = fields.iter().any(|field| field.name == "max_batch_size");
    if is_stated && reader.config.batch_max == 0 && !reader.refused {
        reader.note(None, "max_batch_size is 0, so Triton executes one request at a time; Baton batches tasks along the first dimension of the tensors");
    }
    (Some(reader.config).filter(|_| !reader.refused), reader.notes)
}

struct Reader {
    config: Config,
    notes: Vec<Note>,
    refused: bool,
}

impl Reader {
    /// Once, though each element of a list is a field.
    fn note(&mut self, line: Option<usize>, text: &str) {
        let note = Note { model: self.config.name.clone(), line, text: text.to_owned() };
        if self.notes.last() != Some(&note) {
            self.notes.push(note);
        }
    }

    fn at(&mut self, field: &Field, text: &str) {
        self.note(Some(field.line), text);
    }

    fn refuse(&mut self, field: &Field, text: &str) {
        self.at(field, &format!("left out: {text}"));
        self.refused = true;
    }

    fn field(&mut self, field: &Field) {
        match field.name.as_str() {
            "platform" | "backend" => self.engine(field),
            "default_model_filename" => {
                if let Some(name) = text(field).filter(|name| !name.is_empty()) {
                    name.clone_into(&mut self.config.file_name);
                }
            }
            "max_batch_size" => match number(field).and_then(|size| u32::try_from(size).ok()) {
                Some(size) => self.config.batch_max = size,
                None => self.refuse(field, "max_batch_size is no number of rows"),
            },
            "input" | "output" => self.tensor(field),
            "dynamic_batching" => self.batching(field),
            "version_policy" => self.versions(field),
            "sequence_batching" => {
                self.refuse(
                    field,
                    "sequence_batching: Baton's tasks are independent of each other; have clients send the state as an input and get it as an output",
                );
            }
            "ensemble_scheduling" => {
                self.refuse(
                    field,
                    "an ensemble: Baton has no pipelines; call one model after the other",
                );
            }
            "model_transaction_policy" if flag(field, "decoupled") => {
                self.refuse(field, "decoupled: Baton answers a task once; export a model that gives its whole answer");
            }
            "batch_input" | "batch_output" => {
                let text = "Triton makes it out of the batch; Baton's clients send every input, and get what the model gives";
                self.refuse(field, &format!("{}: {text}", field.name));
            }
            // `read` has seen these.
            "name" | "instance_group" | "model_transaction_policy" => {}
            other => self.at(field, &format!("{other}: not carried over{}", instead_of(other))),
        }
    }

    fn engine(&mut self, field: &Field) {
        match text(field) {
            // An ensemble has `ensemble_scheduling` besides.
            Some("onnxruntime_onnx" | "onnxruntime" | "ensemble" | "") => {}
            other => {
                let what = other.unwrap_or("no text");
                let words = format!(
                    "{} is {what}: Baton executes ONNX files; export the model to ONNX",
                    field.name
                );
                self.refuse(field, &words);
            }
        }
    }

    fn tensor(&mut self, field: &Field) {
        let parts = message(field);
        let name = find(parts, "name").and_then(text).unwrap_or("").to_owned();
        if find(parts, "data_type").and_then(scalar) == Some("TYPE_STRING") {
            self.refuse(field, &format!("{name} is TYPE_STRING: Baton's tensors are numbers; prepare texts in the application"));
        }
        for part in parts {
            let is_set = scalar(part) == Some("true");
            match part.name.as_str() {
                "name" | "data_type" | "dims" | "format" => {}
                "reshape" => {
                    let text = "has a reshape: export the model with the shape that clients send";
                    self.refuse(part, &format!("{name} {text}"));
                }
                "optional" if is_set => {
                    self.refuse(
                        part,
                        &format!("{name} is optional: Baton's tasks have every input; have clients send it always and remove `optional`, or export the model without it"),
                    );
                }
                "is_shape_tensor" if is_set => {
                    self.refuse(
                        part,
                        &format!("{name} is a shape tensor: only TensorRT has those"),
                    );
                }
                "allow_ragged_batch" if is_set => {
                    let text = "is ragged: Baton fills shorter rows up with zeros, which the model must ignore";
                    self.at(part, &format!("{name} {text}"));
                }
                "optional" | "is_shape_tensor" | "allow_ragged_batch" => {}
                other => self.at(part, &format!("{name}: {other}: not carried over")),
            }
        }
        let dims = parts.iter().filter(|part| part.name == "dims");
        self.config.shapes.insert(name, dims.map(|dim| number(dim).unwrap_or(-1)).collect());
    }

    /// On GPUs if any group is; on the CPU as many slots as instances.
    fn instances(&mut self, groups: &[&Field], cpu: bool) {
        let kind = |group: &Field| find(message(group), "kind").and_then(scalar).map(str::to_owned);
        let is_cpu = |group: &&&Field| kind(group).as_deref() == Some("KIND_CPU");
        let on_cpu = groups.iter().filter(is_cpu).count();
        let all_on_cpu = on_cpu > 0 && on_cpu == groups.len();
        self.config.place = if cpu || all_on_cpu { Place::Cpu } else { Place::Gpu };
        let mut slots: u64 = 0;
        for group in groups {
            let gpus = message(group).iter().filter(|part| part.name == "gpus").count() as u64;
            let count = find(message(group), "count").and_then(number).unwrap_or(1).max(1);
            slots += match (self.config.place, is_cpu(&group)) {
                (Place::Cpu, _) => count.cast_unsigned().min(u64::from(GPUS_PER_BACKEND_MAX)),
                (Place::Gpu, false) => {
                    self.gpus(group, gpus, count);
                    gpus
                }
                (Place::Gpu, true) => {
                    self.at(group, "KIND_CPU beside other kinds: served on GPUs alone");
                    0
                }
            };
            for part in message(group) {
                if !["name", "count", "kind", "gpus"].contains(&part.name.as_str()) {
                    self.at(part, &format!("instance_group.{}: not carried over", part.name));
                }
            }
        }
        if groups.is_empty() && !cpu {
            self.note(None, "names no instance_group: it is served on one GPU; --cpu serves every model on the CPU");
        }
        self.config.slots = slots.clamp(1, u64::from(GPUS_PER_BACKEND_MAX)) as u32;
    }

    /// What a group on GPUs does not say or Baton does not do.
    fn gpus(&mut self, group: &Field, gpus: u64, count: i64) {
        let numbers = message(group).iter().filter(|part| part.name == "gpus").map(number);
        if gpus == 0 {
            self.at(group, "instance_group names no gpus, by which Triton means all of the host: set `gpus` of the backend `gpu` to their number");
        } else if !numbers.eq((0..gpus.cast_signed()).map(Some)) {
            self.at(group, "the slots of the backend `gpu` are the host's first GPUs: name these by `devices` (docs/gpu.md)");
        }
        if count > 1 {
            self.at(group, &format!("count is {count}: Baton executes one batch at a time on a GPU, and copies the next one meanwhile"));
        }
    }

    fn batching(&mut self, field: &Field) {
        for part in message(field) {
            match part.name.as_str() {
                name @ ("preferred_batch_size" | "max_queue_delay_microseconds") => {
                    let text =
                        "not needed; Baton chooses batches and how long they wait by the deadlines";
                    self.at(part, &format!("{name}: {text}"));
                }
                "default_queue_policy" => self.policy(part),
                "preserve_ordering" if scalar(part) != Some("true") => {}
                other => self.at(part, &format!("dynamic_batching.{other}: not carried over")),
            }
        }
    }

    fn policy(&mut self, field: &Field) {
        for part in message(field) {
            let positive = number(part).filter(|&number| number > 0);
            match (part.name.as_str(), positive) {
                ("default_timeout_microseconds", Some(us)) => {
                    self.config.slo_ms = Some(us as f64 / 1e3);
                    self.at(part, "default_timeout_microseconds bounds waiting in Triton; here it is slo_ms, by which the answer must be there");
                }
                ("max_queue_size", Some(size)) => {
                    self.config.queue_capacity = Some(size.cast_unsigned());
                }
                ("default_timeout_microseconds" | "max_queue_size", None) => {}
                (name @ ("timeout_action" | "allow_timeout_override"), _) => {
                    let text = "a task that cannot be answered in time is dropped, and each task may have a deadline of its own";
                    self.at(part, &format!("{name}: {text}"));
                }
                (other, _) => {
                    self.at(part, &format!("default_queue_policy.{other}: not carried over"));
                }
            }
        }
    }

    fn versions(&mut self, field: &Field) {
        for part in message(field) {
            let versions = message(part).iter().filter(|inner| inner.name == "versions");
            let stated: Vec<u64> =
                versions.filter_map(|inner| number(inner)?.try_into().ok()).collect();
            self.config.version = self.config.version.max(stated.iter().copied().max());
            let latest = find(message(part), "num_versions").and_then(number).unwrap_or(1);
            if stated.len() > 1 || latest > 1 || part.name == "all" {
                self.at(
                    part,
                    "several versions: Baton serves one of a name; the newest of them is taken",
                );
            }
        }
    }
}

/// What does the same for Baton.
fn instead_of(name: &str) -> &'static str {
    match name {
        "model_warmup" => "; Baton executes batches of each size when it loads a model",
        "response_cache" => "; put a cache before the gateway",
        "optimization" => "; `device` and `tf32` are what Baton has (docs/gpu.md)",
        _ => "",
    }
}

fn find<'a>(fields: &'a [Field], name: &str) -> Option<&'a Field> {
    fields.iter().find(|field| field.name == name)
}

fn message(field: &Field) -> &[Field] {
    match &field.value {
        Value::Message(fields) => fields,
        Value::Scalar(_) | Value::Text(_) => &[],
    }
}

fn text(field: &Field) -> Option<&str> {
    match &field.value {
        Value::Text(text) => Some(text),
        Value::Scalar(_) | Value::Message(_) => None,
    }
}

fn scalar(field: &Field) -> Option<&str> {
    match &field.value {
        Value::Scalar(word) => Some(word),
        Value::Text(_) | Value::Message(_) => None,
    }
}

fn number(field: &Field) -> Option<i64> {
    scalar(field)?.parse().ok()
}

fn flag(field: &Field, name: &str) -> bool {
    find(message(field), name).and_then(scalar) == Some("true")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::triton::text::parse;

    fn understood(text: &str, cpu: bool) -> (Option<Config>, String) {
        let (config, notes) = read(&parse(text).unwrap(), "m", cpu);
        let said = notes.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n");
        (config, said)
    }

    #[test]
    fn what_baton_has_is_carried_over() {
        let (config, notes) = understood(
            "name: \"m\"\nplatform: \"onnxruntime_onnx\"\nmax_batch_size: 16\n\
             input [ { name: \"x\" data_type: TYPE_FP32 dims: [ 3, -1 ] } ]\n\
             instance_group [ { kind: KIND_GPU count: 1 gpus: [ 0, 1 ] } ]\n\
             dynamic_batching { default_queue_policy { default_timeout_microseconds: 25000 max_queue_size: 64 } }\n\
             version_policy: { specific: { versions: [3] } }\ndefault_model_filename: \"net.onnx\"",
            false,
        );
        let expected = Config {
            name: "m".into(),
            file_name: "net.onnx".into(),
            version: Some(3),
            place: Place::Gpu,
            slots: 2,
            batch_max: 16,
            slo_ms: Some(25.0),
            queue_capacity: Some(64),
            shapes: BTreeMap::from([("x".into(), vec![3, -1])]),
        };
        assert_eq!(config, Some(expected));
        assert_eq!(
            notes,
            "m: config.pbtxt:6: default_timeout_microseconds bounds waiting in Triton; here it is slo_ms, by which the answer must be there"
        );
    }

    #[test]
    fn instances_become_slots_of_one_place() {
        let place = |groups: &str, cpu: bool| {
            let (config, notes) = understood(&format!("max_batch_size: 1 {groups}"), cpu);
            let config = config.unwrap();
            (config.place, config.slots, notes)
        };
        let group = |of: &str| format!("instance_group {{ {of} }}\n");
        let cpu = group("kind: KIND_CPU count: 3");
        assert_eq!(place(&cpu, false), (Place::Cpu, 3, String::new()));
        assert_eq!(place(&cpu.repeat(200), false).1, 256);
        let gpu = group("kind: KIND_GPU count: 2 gpus: [0, 1]");
        assert_eq!(place(&gpu, true), (Place::Cpu, 2, String::new()));
        let (at, slots, notes) = place(&(cpu + &gpu), false);
        assert_eq!((at, slots), (Place::Gpu, 2));
        assert!(notes.contains("served on GPUs alone") && notes.contains("count is 2"), "{notes}");
        let (at, slots, notes) = place(&group("gpus: [1]"), false);
        assert_eq!((at, slots), (Place::Gpu, 1));
        assert!(notes.contains("name these by `devices`"), "{notes}");
        assert!(place("", false).2.contains("m: names no instance_group"));
        assert_eq!(place("", true), (Place::Cpu, 1, String::new()));
    }

    #[test]
    fn what_baton_has_not_is_said_by_name_and_line() {
        let (config, notes) = understood(
            "backend: \"onnxruntime\"\nmax_batch_size: 4\ninstance_group { count: 3 kind: KIND_GPU rate_limiter {} }\n\
             dynamic_batching { preferred_batch_size: [4] priority_levels: 2 }\nmodel_warmup {}\nresponse_cache { enable: true }\n\
             version_policy { all {} }",
            false,
        );
        assert_eq!(config.map(|config| (config.name, config.slots)), Some(("m".into(), 1)));
        for words in [
            "m: config.pbtxt:3: instance_group names no gpus",
            "m: config.pbtxt:3: count is 3: Baton executes one batch at a time",
            "m: config.pbtxt:3: instance_group.rate_limiter: not carried over",
            "m: config.pbtxt:4: preferred_batch_size: not needed",
            "m: config.pbtxt:4: dynamic_batching.priority_levels: not carried over",
            "m: config.pbtxt:5: model_warmup: not carried over; Baton executes",
            "m: config.pbtxt:6: response_cache: not carried over; put a cache",
            "m: config.pbtxt:7: several versions",
        ] {
            assert!(notes.contains(words), "{words}: {notes}");
        }
    }

    #[test]
    fn a_model_that_cannot_be_served_says_why() {
        for (text, words) in [
            ("platform: \"tensorrt_plan\"", "export the model to ONNX"),
            ("platform: \"ensemble\" ensemble_scheduling {}", "no pipelines"),
            ("input { name: \"s\" data_type: TYPE_STRING }", "s is TYPE_STRING"),
            ("sequence_batching {}", "independent"),
            ("model_transaction_policy { decoupled: true }", "answers a task once"),
            ("input { name: \"x\" reshape { shape: [] } }", "reshape"),
            ("input { name: \"x\" optional: true }", "every input"),
            ("max_batch_size: many", "no number"),
            ("max_batch_size: -1", "no number"),
        ] {
            let (config, notes) = understood(text, false);
            assert!(config.is_none() && notes.contains("left out: "), "{text}: {notes}");
            assert!(notes.contains(words), "{text}: {notes}");
        }
    }
}
