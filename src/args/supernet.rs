//! `baton supernet`.

use std::path::PathBuf;

use clap::Subcommand;

use super::ProfileArgs;

#[derive(Subcommand, Debug)]
pub(crate) enum SupernetCommand {
    /// Make an ONNX file from a checkpoint: a description of layers and variants, and weights
    ///
    /// One file holds all variants; its input `variant` selects one. With --static, a file for each variant instead: faster on
    /// a CPU, and larger together. docs/supernets.md describes the checkpoint.
    Export(SupernetExportArgs),
    /// Measure ℓ(b) of each variant, and what it costs to switch between them; write the variant table
    ///
    /// FILE is what `baton supernet export` wrote: it names its variants and their accuracies. With --config, the variants are those of a
    /// model of a cluster file, in one ONNX file or in several. The table is what [[model.variant]] of a cluster file takes.
    Profile(ProfileArgs),
    /// Keep the variants of a table that no other beats: more accurate than each that is cheaper
    Pareto(SupernetParetoArgs),
}

#[derive(clap::Args, Debug)]
pub(crate) struct SupernetParetoArgs {
    /// A variant table, as `baton supernet profile` writes it
    pub(crate) table: PathBuf,
    /// Where to write the variants that are kept [default: print them]
    #[arg(long, value_name = "FILE")]
    pub(crate) out: Option<PathBuf>,
    /// Print one JSON object instead of text
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(clap::Args, Debug)]
pub(crate) struct SupernetExportArgs {
    /// The checkpoint's description, a TOML file
    pub(crate) checkpoint: PathBuf,
    /// The file to write [default: NAME.onnx here]; with --static the folder for NAME.VARIANT.onnx
    #[arg(long, value_name = "PATH")]
    pub(crate) out: Option<PathBuf>,
    /// Write a file for each variant
    #[arg(long = "static")]
    pub(crate) is_static: bool,
    /// Only these variants, in this order: the first is variant 0
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    pub(crate) variants: Vec<String>,
    /// Print one JSON object instead of text
    #[arg(long)]
    pub(crate) json: bool,
}
