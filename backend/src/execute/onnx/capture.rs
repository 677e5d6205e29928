//! One size of batch of a model on a GPU: its tensors there, and its work as a CUDA graph.

use std::ops::Range;

use baton_cuda::{CudaError, Graph, Program, Recorder, Tensor};
use baton_topo::signature::{ElementType, Row, Signature, TensorSpec};
use baton_types::SplitMix64;
use half::{bf16, f16};
use ort::memory::{AllocationDevice, Allocator, AllocatorType, MemoryInfo, MemoryType};
use ort::session::{IoBinding, NoSelectedOutputs, RunOptions, Session};
use ort::value::DynTensor;

use super::{Fault, gpu, tensors, text};

/// Executions before the capture: the first ones take memory and choose kernels.
const WARM_UPS: usize = 3;
/// By how much an answer of the graph may differ from that of a direct execution, as a share of the largest number: some
/// kernels add in whatever order their threads come.
const TOLERANCE: f64 = 1e-3;
const FIX: &str =
    "give the model cuda_graphs = false: it then executes without, and copies no rows ahead";

/// Tensors of a batch on the device, bound to a session.
pub(super) struct Capture {
    binding: IoBinding,
    options: RunOptions<NoSelectedOutputs>,
    inputs: Vec<Bound>,
    outputs: Vec<Bound>,
    answer_stride: usize,
}

/// A tensor of the device.
struct Bound {
    tensor: Tensor,
    element: ElementType,
    /// Of all rows.
    bytes: usize,
}

/// Why a batch could not be executed or captured.
enum Refusal {
    Cuda(CudaError),
    Ort(String),
}

impl From<CudaError> for Refusal {
    fn from(error: CudaError) -> Self {
        Self::Cuda(error)
    }
}

impl Refusal {
    fn of(self, doing: &str, rows: u32) -> Fault {
        let problem = match self {
            Self::Cuda(error) => error.to_string(),
            Self::Ort(problem) => problem,
        };
        let fix = gpu::explained(&problem).map_or(FIX, |fault| fault.fix);
        Fault::new(format!("a batch of {rows} cannot be {doing}: {problem}"), fix)
    }
}

impl Capture {
    /// Takes the memory. `device` is the device's number.
    pub(super) fn new(
        session: &Session,
        signature: &Signature,
        device: u32,
        rows: u32,
    ) -> Result<Self, Fault> {
        let made = Self::bind(session, signature, device, rows);
        made.map_err(|problem| Refusal::Ort(problem).of("held on the device", rows))
    }

    fn bind(
        session: &Session,
        signature: &Signature,
        device: u32,
        rows: u32,
    ) -> Result<Self, String> {
        let (kind, number) = (AllocationDevice::CUDA, device.cast_signed());
        let memory = MemoryInfo::new(kind, number, AllocatorType::Device, MemoryType::Default);
        let allocator = Allocator::new(session, memory.map_err(text)?).map_err(text)?;
        let mut binding = session.create_binding().map_err(text)?;
        let mut inputs = Vec::new();
        for (name, tensor, bound) in taken(&allocator, &signature.input, rows)? {
            binding.bind_input(name, &tensor).map_err(text)?;
            inputs.push(bound);
        }
        let mut outputs = Vec::new();
        for (name, tensor, bound) in taken(&allocator, &signature.output, rows)? {
            binding.bind_output(name, tensor).map_err(text)?;
            outputs.push(bound);
        }
        let mut options = RunOptions::new().map_err(text)?;
        options.disable_device_sync().map_err(text)?;
        let answer_stride = signature.output.bytes_max() as usize;
        Ok(Self { binding, options, inputs, outputs, answer_stride })
    }

    /// Executes, captures, and compares the two.
    pub(super) fn program(
        self,
        session: &mut Session,
        recorder: &Recorder,
    ) -> Result<(Program<Graph>, IoBinding), Fault> {
        let rows = self.inputs.first().map_or(0, Bound::rows);
        let direct = self.execute(session, recorder);
        let direct = direct.map_err(|refusal| refusal.of("executed", rows))?;
        let graph = recorder.capture(|| self.run(session));
        let graph = graph.map_err(|refusal| refusal.of("captured as a CUDA graph", rows))?;
        let replayed = self.replay(recorder, &graph);
        let replayed = replayed.map_err(|refusal| refusal.of("executed as a CUDA graph", rows))?;
        for ((output, direct), replayed) in self.outputs.iter().zip(&direct).zip(&replayed) {
            if !is_near(output.element, direct, replayed) {
                let problem = format!("a batch of {rows} has other answers as a CUDA graph");
                return Err(Fault::new(problem, FIX));
            }
        }
        let tensors = |bound: &[Bound]| bound.iter().map(|bound| bound.tensor).collect();
        let (inputs, outputs) = (tensors(&self.inputs), tensors(&self.outputs));
        let program = Program { graph, inputs, outputs, answer_stride: self.answer_stride };
        Ok((program, self.binding))
    }

    /// Puts the batch's work into the session's stream.
    fn run(&self, session: &mut Session) -> Result<(), Refusal> {
        let run = session.run_binding_with_options(&self.binding, &self.options);
        run.map(drop).map_err(|error| Refusal::Ort(text(error)))
    }

    /// Executes some rows. The answers, by output.
    fn execute(&self, session: &mut Session, recorder: &Recorder) -> Result<Vec<Vec<u8>>, Refusal> {
        self.fill(recorder, 1)?;
        for _ in 0..WARM_UPS {
            self.run(session)?;
        }
        self.answers(recorder)
    }

    /// Executes other rows by the graph, then the same. The answers to these.
    fn replay(&self, recorder: &Recorder, graph: &Graph) -> Result<Vec<Vec<u8>>, Refusal> {
        for seed in [2, 1] {
            self.fill(recorder, seed)?;
            recorder.replay(graph)?;
        }
        self.answers(recorder)
    }

    /// Random numbers for inputs of floating point, zeros for others, which may be indices; poison for outputs.
    fn fill(&self, recorder: &Recorder, seed: u64) -> Result<(), CudaError> {
        let mut random = SplitMix64::new(seed);
        for input in &self.inputs {
            recorder.write(input.tensor.address, &input.content(&mut random))?;
        }
        for output in &self.outputs {
            recorder.write(output.tensor.address, &vec![0xcd; output.bytes])?;
        }
        Ok(())
    }

    fn answers(&self, recorder: &Recorder) -> Result<Vec<Vec<u8>>, Refusal> {
        let mut answers = Vec::new();
        for output in &self.outputs {
            let mut answer = vec![0; output.bytes];
            recorder.read(output.tensor.address, &mut answer)?;
            answers.push(answer);
        }
        Ok(answers)
    }
}

impl Bound {
    /// At this address, with `place` in a row.
    fn at(address: u64, element: ElementType, place: Range<usize>, rows: u32) -> Self {
        let (row_bytes, offset) = (place.len(), place.start);
        let tensor = Tensor { address, row_bytes, offset };
        Self { tensor, element, bytes: row_bytes * rows as usize }
    }

    fn rows(&self) -> u32 {
        (self.bytes / self.tensor.row_bytes.max(1)) as u32
    }

    /// Numbers of 0 to 1, or zeros.
    fn content(&self, random: &mut SplitMix64) -> Vec<u8> {
        let count = self.bytes / self.element.bytes();
        let mut next = || random.below(1 << 10) as f32 / 1024.0;
        match self.element {
            ElementType::F32 => (0..count).flat_map(|_| next().to_le_bytes()).collect(),
            ElementType::F64 => (0..count).flat_map(|_| f64::from(next()).to_le_bytes()).collect(),
            ElementType::F16 => {
                (0..count).flat_map(|_| f16::from_f32(next()).to_le_bytes()).collect()
            }
            ElementType::Bf16 => {
                (0..count).flat_map(|_| bf16::from_f32(next()).to_le_bytes()).collect()
            }
            _ => vec![0; self.bytes],
        }
    }
}

/// Memory of the device for each tensor of a batch of `rows`, with where it lies in a row.
fn taken(
    allocator: &Allocator,
    of: &Row,
    rows: u32,
) -> Result<Vec<(String, DynTensor, Bound)>, String> {
    let specs = of.tensors().iter().zip(of.places());
    let tensors = specs.map(|(spec, place)| {
        let (kind, shape) = (tensors::kind_of(spec.element), shape_of(spec, rows));
        let mut tensor = DynTensor::new(allocator, kind, shape).map_err(text)?;
        let address = tensor.data_ptr_mut().addr() as u64;
        Ok((spec.name.clone(), tensor, Bound::at(address, spec.element, place, rows)))
    });
    tensors.collect()
}

/// For a batch of `rows`.
fn shape_of(spec: &TensorSpec, rows: u32) -> Vec<i64> {
    let extents = spec.shape.iter().map(|extent| extent.max());
    std::iter::once(rows).chain(extents).map(i64::from).collect()
}

/// Whether two answers are the same but for rounding. What is no number of floating point must be equal.
fn is_near(element: ElementType, one: &[u8], other: &[u8]) -> bool {
    let (Some(one), Some(other)) = (numbers(element, one), numbers(element, other)) else {
        return one == other;
    };
    let largest = one.iter().fold(0.0_f64, |largest, number| largest.max(number.abs()));
    let near = |(a, b): (&f64, &f64)| {
        a == b || (a - b).abs() <= TOLERANCE * largest || a.is_nan() && b.is_nan()
    };
    one.len() == other.len() && one.iter().zip(&other).all(near)
}

/// `None` for what is no floating point.
fn numbers(element: ElementType, bytes: &[u8]) -> Option<Vec<f64>> {
    Some(match element {
        ElementType::F32 => {
            bytes.as_chunks().0.iter().map(|&word| f32::from_le_bytes(word).into()).collect()
        }
        ElementType::F64 => {
            bytes.as_chunks().0.iter().map(|&word| f64::from_le_bytes(word)).collect()
        }
        ElementType::F16 => {
            bytes.as_chunks().0.iter().map(|&word| f16::from_le_bytes(word).into()).collect()
        }
        ElementType::Bf16 => {
            bytes.as_chunks().0.iter().map(|&word| bf16::from_le_bytes(word).into()).collect()
        }
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use baton_topo::signature::Extent;

    use super::*;

    #[test]
    fn a_tensor_of_a_batch_has_all_rows_and_lies_where_a_row_has_it() {
        let shape = [2, 5].map(Extent::Fixed).into();
        let spec = TensorSpec { name: "tensor".into(), element: ElementType::I32, shape };
        assert_eq!(shape_of(&spec, 4), [4, 2, 5]);
        assert_eq!(shape_of(&TensorSpec { shape: Vec::new(), ..spec.clone() }, 4), [4]);
        let bound = Bound::at(64, spec.element, 8..48, 4);
        assert_eq!(bound.tensor, Tensor { address: 64, row_bytes: 40, offset: 8 });
        assert_eq!((bound.bytes, bound.rows()), (160, 4));
    }

    #[test]
    fn floating_point_is_tried_with_other_numbers_for_each_seed_and_indices_with_zeros() {
        for &element in ElementType::ALL {
            let bound = Bound::at(0, element, 0..8 * element.bytes(), 3);
            let content = |seed| bound.content(&mut SplitMix64::new(seed));
            let (one, other) = (content(1), content(2));
            assert_eq!((one.len(), &one), (24 * element.bytes(), &content(1)), "{element}");
            match numbers(element, &one) {
                Some(numbers) => {
                    assert!(numbers.iter().all(|number| (0.0..=1.0).contains(number)), "{element}");
                    assert!(!is_near(element, &one, &other), "{element}");
                }
                None => assert!(one.iter().all(|&byte| byte == 0), "{element}"),
            }
        }
    }

    fn bytes(numbers: &[f32]) -> Vec<u8> {
        numbers.iter().flat_map(|number| number.to_le_bytes()).collect()
    }

    #[test]
    fn answers_may_differ_by_rounding_and_no_more() {
        let near =
            |one: &[f32], other: &[f32]| is_near(ElementType::F32, &bytes(one), &bytes(other));
        assert!(near(&[1.0, -1000.0], &[1.5, -1000.5]));
        assert!(!near(&[1.0, -1000.0], &[3.0, -1000.0]));
        assert!(!near(&[1.0], &[f32::NAN]) && near(&[f32::NAN, 0.0], &[f32::NAN, 0.0]));
        assert!(near(&[f32::INFINITY], &[f32::INFINITY]));
        assert!(!near(&[f32::NAN], &[1.0]) && !near(&[1.0], &[1.0, 2.0]));
        assert!(!near(&[0.0], &[1e-9]), "nothing is near to zeros alone");
        assert!(
            is_near(ElementType::I64, &[1; 8], &[1; 8])
                && !is_near(ElementType::I64, &[1; 8], &[2; 8])
        );
    }
}
