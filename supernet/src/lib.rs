//! Supernets as plain ONNX files, and which of their variants are worth serving.
//!
//! ```text
//!  supernet.toml + weights.safetensors ─Checkpoint─▶ export ─▶ ONNX file ─(a backend measures)─▶ variant table ─▶ pareto
//! ```
//!
//! `docs/supernets.md` describes the checkpoint. One ONNX file holds every variant: its input `variant` selects one, by `If` around blocks that
//! some variants skip, by `Slice` of weights of which some variants use a part, and by `Gather` of each variant's own statistics.
#![forbid(unsafe_code)]

mod checkpoint;
mod export;
mod graph;
mod layers;
mod metadata;
mod pareto;
mod problem;
mod proto;
mod size;
mod table;

pub use checkpoint::{
    Checkpoint, Description, Element, Extent, InputSpec, Layer, OutputSpec, Tensor, VariantSpec,
};
pub use export::{Exported, Form, export};
pub use metadata::{NamedVariant, variants_of};
pub use pareto::{Left, Measured, Pareto, pareto};
pub use problem::Problem;
pub use table::{is_table, read_table, table_text};

/// The input of a supernet's ONNX file that selects the variant: one int64 without dimensions.
pub const VARIANT_INPUT: &str = "variant";
/// More variants than a file may hold.
pub const VARIANTS_MAX: usize = 256;
