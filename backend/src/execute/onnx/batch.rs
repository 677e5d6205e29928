//! One batch: rows of equal shapes execute together, those of others after them.
//!
//! Rows are not padded to a common shape: what padding does to an answer is for the model to say, and few do.

use baton_topo::signature::{Row, TensorRef};
use baton_types::FailReason;
use ort::session::{Session, SessionOutputs};
use ort::value::DynValue;

use super::super::{Inputs, Outputs};
use super::finite::is_finite;
use super::{CONTROL, Model, tensors, text};

/// Rows that execute together.
struct Group<'a> {
    rows: Vec<u32>,
    /// By row, then by tensor.
    tensors: Vec<Vec<TensorRef<'a>>>,
}

impl Model {
    /// Answers each row, or says why not. An error: no row could be executed.
    pub(super) fn execute(
        &mut self,
        variant: u16,
        inputs: Inputs<'_>,
        outputs: &mut Outputs,
    ) -> Result<(), String> {
        if variant >= self.variants {
            return Err(format!("it has no variant {variant}"));
        }
        if self.in_place
            && let Some(whole) = inputs.whole()
        {
            return self.execute_in_place(variant, whole, inputs.len(), outputs);
        }
        let mut problem = None;
        let mut executed = 0;
        for group in groups(&self.signature.input, inputs, outputs) {
            match self.execute_group(variant, &group, outputs) {
                Ok(()) => executed += group.rows.len(),
                Err(error) => {
                    group.rows.iter().for_each(|&row| outputs.set(row, Err(FailReason::Engine)));
                    problem = Some(error);
                }
            }
        }
        match problem {
            Some(problem) if executed == 0 => Err(problem),
            // Any frontend can cause this with each of its tasks: they are counted, and their outcomes say it.
            Some(problem) => {
                tracing::debug!(problem, "rows of some shapes could not be executed");
                Ok(())
            }
            None => Ok(()),
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
        let (session, control) = of_variant(&mut self.sessions, self.control.as_deref(), variant)?;
        values.extend(control.map(|control| (CONTROL.into(), control.into())));
        let results = session.run(values).map_err(text)?;
        let all: Vec<u32> = (0..rows).collect();
        let is_checked = self.finite.is_some();
        let refused = answer(&self.signature.output, &results, (rows, &all), is_checked, outputs)?;
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
        let mut values: Vec<(String, DynValue)> = Vec::new();
        for (number, spec) in self.signature.input.tensors().iter().enumerate() {
            let of_rows: Vec<&TensorRef<'_>> =
                group.tensors.iter().map(|row| &row[number]).collect();
            values.push((spec.name.clone(), tensors::gather(spec.element, &of_rows, batch)?));
        }
        let (session, control) = of_variant(&mut self.sessions, self.control.as_deref(), variant)?;
        values.extend(control.map(|control| (CONTROL.to_owned(), control)));
        let results = session.run(values).map_err(text)?;
        let (rows, is_checked) = ((batch, &group.rows[..]), self.finite.is_some());
        let refused = answer(&self.signature.output, &results, rows, is_checked, outputs)?;
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
fn answer<'a>(
    signature: &Row,
    results: &'a SessionOutputs<'_>,
    (batch, rows): (u32, &[u32]),
    is_checked: bool,
    outputs: &mut Outputs,
) -> Result<u32, String> {
    let (mut values, mut refused) = (Vec::new(), 0);
    for spec in signature.tensors() {
        let value = results.get(&spec.name).ok_or_else(|| format!("no output `{}`", spec.name))?;
        let (shape, bytes) = tensors::bytes_of(spec.element, value)?;
        if shape.first() != Some(&batch) {
            return Err(format!("output `{}` has shape {shape:?} for {batch} rows", spec.name));
        }
        values.push((shape, bytes));
    }
    for (number, &row) in rows.iter().enumerate() {
        let of_row = |(shape, bytes): &(Vec<u32>, &'a [u8])| {
            let len = bytes.len() / batch as usize;
            TensorRef { shape: shape[1..].to_vec(), bytes: &bytes[number * len..][..len] }
        };
        let tensors: Vec<TensorRef<'_>> = values.iter().map(of_row).collect();
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
