//! An inference request, checked against what the model takes.

use std::time::Duration;

use baton_client::TensorSpec;

use super::memory::Part;
use super::numbers::has_json;
use super::problem::{Kind, Problem};

/// What a model takes and gives.
#[derive(Clone, Copy, Debug)]
pub struct Model<'a> {
    /// Its name.
    pub name: &'a str,
    /// Its inputs, without the batch dimension.
    pub inputs: &'a [TensorSpec],
    /// Its outputs.
    pub outputs: &'a [TensorSpec],
    /// Most tasks of one request.
    pub batch_max: usize,
}

/// A request that fits its model.
#[derive(Debug)]
pub struct Request<'a> {
    /// The parameter `timeout`.
    pub timeout: Option<Duration>,
    /// Tasks: the first dimension of every input.
    pub batch: usize,
    /// One for each input of the model, in the order of the request.
    pub inputs: Vec<Tensor<'a>>,
    /// What is still needed once the inputs are in their slots.
    pub wanted: Wanted,
}

/// What a request's answer has to be.
#[derive(Debug, Default)]
pub struct Wanted {
    /// Comes back with the answer.
    pub id: Option<String>,
    /// What is to be in the answer, in this order.
    pub outputs: Vec<Asked>,
    /// Outputs that go to shared memory: which of the model's, and where.
    pub places: Vec<(usize, Part)>,
}

/// An input of a request.
#[derive(Debug)]
pub struct Tensor<'a> {
    /// Which of the model's inputs it is.
    pub index: usize,
    /// Its shape, the batch dimension first.
    pub shape: Vec<usize>,
    /// The extents of one task.
    pub extents: Vec<u32>,
    /// Its elements.
    pub source: Source<'a>,
}

/// Where the elements of an input are.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Source<'a> {
    /// In the JSON, as this text.
    Json(&'a str),
    /// Behind the JSON; how many bytes.
    Binary(usize),
    /// In shared memory.
    Shared(Part),
}

/// An output of the answer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Asked {
    /// Which of the model's outputs.
    pub index: usize,
    /// How it travels.
    pub form: Form,
}

/// How an output reaches its client.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Form {
    /// As numbers of the JSON.
    Json,
    /// As bytes behind the JSON.
    Binary,
    /// In shared memory: the answer has its shape only.
    Shared,
}

/// A request as a client wrote it, whatever the protocol.
#[derive(Debug)]
pub struct Written<'a> {
    /// Comes back with the answer.
    pub id: Option<String>,
    /// The parameter `timeout`, µs.
    pub timeout_us: Option<u64>,
    /// It belongs to a sequence.
    pub is_sequence: bool,
    /// Outputs are bytes unless one says otherwise.
    pub is_binary: bool,
    /// At most as many as a model can have.
    pub inputs: Vec<WrittenInput<'a>>,
    /// Empty: all.
    pub outputs: Vec<WrittenOutput>,
}

/// An input as a client wrote it.
#[derive(Debug)]
pub struct WrittenInput<'a> {
    /// Its name.
    pub name: String,
    /// The protocol's name of its type.
    pub datatype: String,
    /// Its shape, the batch dimension first.
    pub shape: Vec<u32>,
    /// Where its elements are, if anywhere.
    pub source: Option<Source<'a>>,
}

/// An output as a client asked for it.
#[derive(Debug)]
pub struct WrittenOutput {
    /// Its name.
    pub name: String,
    /// Whether as bytes, if it says so.
    pub is_binary: Option<bool>,
    /// Where in shared memory, if there.
    pub shared: Option<Part>,
    /// The largest elements are asked for instead of all.
    pub is_classification: bool,
}

impl<'a> Request<'a> {
    /// The request, if it fits the model.
    ///
    /// # Errors
    /// What does not fit, or is not there in this gateway.
    pub fn check(written: Written<'a>, model: &Model<'_>) -> Result<Self, Problem> {
        if written.is_sequence {
            return Err(not_done("sequences", "leave sequence_id out"));
        }
        let mut request = Self {
            timeout: written.timeout_us.map(Duration::from_micros),
            batch: 0,
            inputs: Vec::with_capacity(model.inputs.len()),
            wanted: Wanted { id: written.id, ..Wanted::default() },
        };
        request.wanted.ask(written.outputs, written.is_binary, model)?;
        for input in written.inputs {
            request.add(input, model)?;
        }
        let given = |index| request.inputs.iter().any(|input| input.index == index);
        match (0..model.inputs.len()).find(|&index| !given(index)) {
            Some(missing) => {
                let (spec, name) = (&model.inputs[missing], &model.inputs[missing].name);
                Err(Problem::invalid(format!("input {name:?} is missing: {}", shape_of(spec))))
            }
            None => Ok(request),
        }
    }

    /// Bytes of binary data that follow the JSON.
    pub fn binary_bytes(&self) -> usize {
        let bytes = |input: &Tensor<'_>| match input.source {
            Source::Binary(bytes) => bytes,
            Source::Json(_) | Source::Shared(_) => 0,
        };
        self.inputs.iter().map(bytes).fold(0, usize::saturating_add)
    }

    /// What it wants of shared memory.
    pub fn parts(&self) -> impl Iterator<Item = &Part> {
        let inputs = self.inputs.iter().filter_map(|input| match &input.source {
            Source::Shared(part) => Some(part),
            Source::Json(_) | Source::Binary(_) => None,
        });
        inputs.chain(self.wanted.places.iter().map(|(_, part)| part))
    }

    fn add(&mut self, input: WrittenInput<'a>, model: &Model<'_>) -> Result<(), Problem> {
        let name = &input.name;
        let index = index_of(name, "input", model.inputs)?;
        if self.inputs.iter().any(|other| other.index == index) {
            return Err(Problem::invalid(format!("input {name:?} is given twice")));
        }
        let spec = &model.inputs[index];
        let shape = self.shape(&input, spec, model.batch_max)?;
        let source = input.source.ok_or_else(|| {
            Problem::invalid(format!("input {name:?} has no data: give data, or binary data"))
        })?;
        match &source {
            Source::Binary(bytes) => check_bytes(name, spec, &shape, (*bytes, "of binary data"))?,
            Source::Shared(part) => {
                check_bytes(name, spec, &shape, (part.bytes, "of shared memory"))?;
            }
            Source::Json(_) => {}
        }
        self.batch = shape[0];
        let extents = shape[1..].iter().map(|&extent| extent as u32).collect();
        self.inputs.push(Tensor { index, shape, extents, source });
        Ok(())
    }

    /// The shape that an input states, if the model takes it.
    fn shape(
        &self,
        input: &WrittenInput<'_>,
        spec: &TensorSpec,
        batch_max: usize,
    ) -> Result<Vec<usize>, Problem> {
        let (name, given) = (&input.name, &input.shape);
        if input.datatype != spec.element.oip_name() {
            let (got, text) = (&input.datatype, shape_of(spec));
            return Err(Problem::invalid(format!(
                "input {name:?} is {got}; the model takes {text}"
            )));
        }
        let fits = given.len() == spec.shape.len() + 1
            && spec.shape.iter().zip(&given[1..]).all(|(extent, &given)| extent.allows(given));
        if !fits {
            let text = shape_of(spec);
            return Err(Problem::invalid(format!(
                "input {name:?} has shape {given:?}; the model takes {text}"
            )));
        }
        let batch = given[0] as usize;
        if !(1..=batch_max).contains(&batch) {
            let bound = "which is as many tasks as the gateway has slots for";
            let text =
                format!("input {name:?} has a batch of {batch}; give 1 to {batch_max}, {bound}");
            return Err(Problem::invalid(text));
        }
        if self.batch > 0 && self.batch != batch {
            let (one, other) = (self.batch, batch);
            let text = format!("the inputs have batches of {one} and {other}: they must be equal");
            return Err(Problem::invalid(text));
        }
        Ok(given.iter().map(|&extent| extent as usize).collect())
    }
}

impl Wanted {
    /// The outputs that are asked for; without any all are meant.
    fn ask(
        &mut self,
        written: Vec<WrittenOutput>,
        is_binary: bool,
        model: &Model<'_>,
    ) -> Result<(), Problem> {
        let form = |is_binary| if is_binary { Form::Binary } else { Form::Json };
        if written.is_empty() {
            let all = 0..model.outputs.len();
            self.outputs.extend(all.map(|index| Asked { index, form: form(is_binary) }));
        }
        for output in written {
            let index = index_of(&output.name, "output", model.outputs)?;
            if output.is_classification {
                return Err(not_done("classification", "ask for the tensor and take its largest"));
            }
            let form = match output.shared {
                Some(part) => {
                    self.places.push((index, part));
                    Form::Shared
                }
                None => form(output.is_binary.unwrap_or(is_binary)),
            };
            self.outputs.push(Asked { index, form });
        }
        self.outputs.iter().try_for_each(|&asked| check_form(asked, model))
    }
}

fn check_bytes(
    name: &str,
    spec: &TensorSpec,
    shape: &[usize],
    (bytes, what): (usize, &str),
) -> Result<(), Problem> {
    let count = shape.iter().try_fold(spec.element.bytes(), |all, &one| all.checked_mul(one));
    if count != Some(bytes) {
        let made = count.map_or_else(|| "more than can be".to_owned(), |count| count.to_string());
        let text = format!("input {name:?} has {bytes} bytes {what}; its shape makes {made}");
        return Err(Problem::invalid(text));
    }
    Ok(())
}

/// A tensor as clients give it.
fn shape_of(spec: &TensorSpec) -> String {
    let extents: String = spec.shape.iter().map(|extent| format!(", {extent}")).collect();
    format!("{} of shape [batch{extents}]", spec.element.oip_name())
}

fn index_of(name: &str, what: &str, specs: &[TensorSpec]) -> Result<usize, Problem> {
    specs.iter().position(|spec| spec.name == name).ok_or_else(|| {
        let known: Vec<&str> = specs.iter().map(|spec| &spec.name[..]).collect();
        let known = known.join(", ");
        Problem::invalid(format!("the model has no {what} {name:?}; it has: {known}"))
    })
}

fn not_done(what: &str, fix: &str) -> Problem {
    Problem::new(Kind::NotDone, format!("this gateway has no {what}: {fix}"))
}

fn check_form(asked: Asked, model: &Model<'_>) -> Result<(), Problem> {
    let spec = &model.outputs[asked.index];
    if asked.form == Form::Json && !has_json(spec.element) {
        let (name, kind) = (&spec.name, spec.element.oip_name());
        let text = format!("output {name:?} is {kind}, which JSON has not: ask for binary_data");
        return Err(Problem::invalid(text));
    }
    Ok(())
}

#[cfg(test)]
#[path = "request_tests.rs"]
mod tests;
