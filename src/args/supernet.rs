//! `baton supernet`.

use std::path::PathBuf;

use clap::Subcommand;

#[derive(Subcommand, Debug)]
pub(crate) enum SupernetCommand {
    /// Make an ONNX file from a checkpoint: a description of layers and variants, and weights
    ///
    /// One file holds all variants; its input `variant` selects one. With --static, a file for each variant instead: faster on
    /// a CPU, and larger together. docs/supernets.md describes the checkpoint.
    Export(SupernetExportArgs),
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
