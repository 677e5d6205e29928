//! One batch: rows of equal shapes execute together, those of others after them.
//!
//! Rows are not padded to a common shape: what padding does to an answer is for the model to say, and few do.

use std::borrow::Cow;

use baton_topo::signature::{Row, TensorRef};
use baton_types::FailReason;
use ort::session::{Session, SessionInputValue, SessionOutputs};
use ort::value::DynValue;

use super::super::{Inputs, Outputs};
use super::finite::is_finite;
use super::{CONTROL, Model, strided, tensors, text};

/// Further executions of a batch in which some could not be executed: enough to find one bad row of 64, and a bound on what a
/// frontend that sends nothing else takes from the slot.
pub(super) const SEARCHES_MAX: u32 = 12;

/// Rows that execute together.
struct Group<'a> {
    rows: Vec<u32>,
    /// By row, then by tensor.
    tensors: Vec<Vec<TensorRef<'a>>>,
}

impl Group<'_> {
    /// The two halves of a group of several rows.
    fn halves(mut self) -> [Self; 2] {
        let half = self.rows.len() / 2;
        let (rows, tensors) = (self.rows.split_off(half), self.tensors.split_off(half));
        [self, Self { rows, tensors }]
    }
}

impl Model {
    /// Answers each row, or says why not, with `searches_max` further executions at most. An error: no row could be executed.
    pub(super) fn execute(
        &mut self,
        variant: u16,
        inputs: Inputs<'_>,
        outputs: &mut Outputs,
        searches_max: u32,
    ) -> Result<(), String> {
        if variant >= self.variants {
            return Err(format!("it has no variant {variant}"));
        }
        if self.in_place
            && let Some(whole) = inputs.whole()
        {
            return self.execute_in_place(variant, whole, inputs.len(), outputs);
        }
        let (mut problem, mut executed, mut searches) = (None, 0, 0);
        let mut left = groups(&self.signature.input, inputs, outputs);
        while let Some(group) = left.pop() {
            let Err(error) = self.execute_group(variant, &group, outputs) else {
                executed += group.rows.len();
                continue;
            };
            problem = Some(error);
            // One row, such as one with an index out of range, fails all that execute with it.
            if group.rows.len() > 1 && searches < searches_max {
                searches += 2;
                left.extend(group.halves());
            } else {
                group.rows.iter().for_each(|&row| outputs.set(row, Err(FailReason::Engine)));
            }
        }
        match problem {
            Some(problem) if executed == 0 => Err(problem),
            Some(problem) => {
                self.warn(&problem);
                Ok(())
            }
            None => Ok(()),
        }
    }

    /// Warns once: any frontend can cause this with each of its tasks. Their outcomes say it.
    fn warn(&mut self, problem: &str) {
        if !std::mem::replace(&mut self.has_refused, true) {
            tracing::warn!(
                model = self.name,
                problem,
                "a row cannot be executed: its task fails (engine), and later ones will without a word; look at the inputs"
            );
        }
    }

    fn execute_in_place(
        &mut self,
        variant: u16,
        whole: &[u8],
        rows: u32,
        outputs: &mut Outputs,
    ) -> Result<(), String> {
        let [spec] = self.signature.input.tensors() else { unreachable!("one input is in place") };
        let extents = spec.shape.iter().map(|extent| i64::from(extent.max()));
        let shape: Vec<i64> = std::iter::once(i64::from(rows)).chain(extents).collect();
        let value = tensors::floats_in_place(&shape, whole)?;
        let mut values = ort::inputs![spec.name.as_str() => value];
        values.extend(self.constants.iter().map(|(name, value)| (name.into(), value.into())));
        let (session, control) = of_variant(&mut self.sessions, self.control.as_deref(), variant)?;
        values.extend(control.map(|control| (CONTROL.into(), control.into())));
        let results = session.run(values).map_err(text)?;
        let all: Vec<u32> = (0..rows).collect();
        let is_checked = self.finite.is_some();
        let of = (&self.signature.output, &self.axes[1][..]);
        let refused = answer(of, &results, (rows, &all), is_checked, outputs)?;
        drop(results);
        self.note(refused);
        Ok(())
    }

    fn note(&mut self, refused: u32) {
        self.finite.iter_mut().for_each(|watch| watch.note(refused));
    }

    fn execute_group(
        &mut self,
        variant: u16,
        group: &Group<'_>,
        outputs: &mut Outputs,
    ) -> Result<(), String> {
        let rows = group.rows.len() as u32;
        let batch = self.fixed_batch.unwrap_or(rows);
        if rows > batch {
            return Err(format!("{rows} rows, and the file has batches of {batch}"));
        }
        let mut values: Vec<(&str, SessionInputValue<'_>)> = Vec::new();
        for (number, spec) in self.signature.input.tensors().iter().enumerate() {
            let of_rows: Vec<&TensorRef<'_>> =
                group.tensors.iter().map(|row| &row[number]).collect();
            let layout = (self.axes[0][number], batch);
            values.push((&spec.name, tensors::gather(spec.element, &of_rows, layout)?.into()));
        }
        values.extend(self.constants.iter().map(|(name, value)| (name.as_str(), value.into())));
        let (session, control) = of_variant(&mut self.sessions, self.control.as_deref(), variant)?;
        values.extend(control.map(|control| (CONTROL, control.into())));
        let results = session.run(values).map_err(text)?;
        let (rows, is_checked) = ((batch, &group.rows[..]), self.finite.is_some());
        let of = (&self.signature.output, &self.axes[1][..]);
        let refused = answer(of, &results, rows, is_checked, outputs)?;
        drop(results);
        self.note(refused);
        Ok(())
    }
}

/// The session that executes a variant, and what its control input gets if it has one.
fn of_variant<'a>(
    sessions: &'a mut [Session],
    control: Option<&[i64]>,
    variant: u16,
) -> Result<(&'a mut Session, Option<DynValue>), String> {
    let at = if sessions.len() > 1 { usize::from(variant) } else { 0 };
    let control = control.map(|shape| tensors::integer(shape, variant.into())).transpose()?;
    Ok((&mut sessions[at], control))
}

/// The rows by their shapes. A row that is none of this model's has its answer: it fails alone.
fn groups<'a>(signature: &Row, inputs: Inputs<'a>, outputs: &mut Outputs) -> Vec<Group<'a>> {
    let mut groups: Vec<Group<'a>> = Vec::new();
    for row in 0..inputs.len() {
        let Ok(tensors) = signature.unpack(inputs.row(row)) else {
            outputs.set(row, Err(FailReason::WrongSize));
            continue;
        };
        let alike = |group: &&mut Group<'a>| {
            group.tensors[0].iter().zip(&tensors).all(|(one, other)| one.shape == other.shape)
        };
        match groups.iter_mut().find(alike) {
            Some(group) => {
                group.rows.push(row);
                group.tensors.push(tensors);
            }
            None => groups.push(Group { rows: vec![row], tensors: vec![tensors] }),
        }
    }
    groups
}

/// Deals what a batch of `batch` rows has answered to `rows`, the first of them. Returns how many have no answer because it
/// is not finite, if that is to be checked.
fn answer(
    (signature, axes): (&Row, &[Option<usize>]),
    results: &SessionOutputs<'_>,
    (batch, rows): (u32, &[u32]),
    is_checked: bool,
    outputs: &mut Outputs,
) -> Result<u32, String> {
    let (mut values, mut refused) = (Vec::new(), 0);
    for (spec, &axis) in signature.tensors().iter().zip(axes) {
        let value = results.get(&spec.name).ok_or_else(|| format!("no output `{}`", spec.name))?;
        let (shape, bytes) = tensors::bytes_of(spec.element, value)?;
        values.push(rows_of(&spec.name, (shape, axis), bytes, batch)?);
    }
    for (number, &row) in rows.iter().enumerate() {
        let tensors: Vec<TensorRef<'_>> = values
            .iter()
            .map(|(shape, bytes)| {
                let len = bytes.len() / batch as usize;
                TensorRef { shape: shape.clone(), bytes: &bytes[number * len..][..len] }
            })
            .collect();
        let mut typed = signature.tensors().iter().zip(&tensors);
        if is_checked && !typed.all(|(spec, tensor)| is_finite(spec.element, tensor.bytes)) {
            outputs.set(row, Err(FailReason::Engine));
            refused += 1;
            continue;
        }
        let len = signature.pack(&tensors, outputs.row_mut(row)).map_err(text)?;
        outputs.set(row, Ok(len as u32));
    }
    Ok(refused)
}

/// The shape of a row of an output, and the rows of a batch, one behind the other: as they lie there where the batch is the first
/// dimension.
fn rows_of<'a>(
    name: &str,
    (mut shape, axis): (Vec<u32>, Option<usize>),
    bytes: &'a [u8],
    batch: u32,
) -> Result<(Vec<u32>, Cow<'a, [u8]>), String> {
    let Some(axis) = axis else { return Ok((shape, Cow::Borrowed(bytes))) };
    if shape.get(axis) != Some(&batch) {
        let hint = hint(name, &shape, batch);
        return Err(format!("output `{name}` has shape {shape:?} for {batch} rows{hint}"));
    }
    shape.remove(axis);
    let blocks = strided::blocks(&shape, Some(axis));
    let rows = match blocks {
        1 => Cow::Borrowed(bytes),
        _ => Cow::Owned(strided::into_rows(bytes, blocks, batch as usize)),
    };
    Ok((shape, rows))
}

/// What to write if the one dimension as long as the batch is the batch.
fn hint(name: &str, shape: &[u32], batch: u32) -> String {
    let mut axes = (0..shape.len()).filter(|&axis| shape[axis] == batch);
    match (axes.next(), axes.next()) {
        (Some(axis), None) => {
            format!("; if dimension {axis} is the batch: batch_dim = {{ {name:?} = {axis} }}")
        }
        _ => String::new(),
    }
}
