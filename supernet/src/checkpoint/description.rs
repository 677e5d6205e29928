//! The text of a checkpoint: `docs/supernets.md`, *A checkpoint*.

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde::Deserialize;

/// Layers and variants.
#[derive(Clone, PartialEq, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Description {
    /// The graph's name.
    pub name: String,
    /// The safetensors file, beside the description.
    pub weights: PathBuf,
    /// What comes in.
    pub input: InputSpec,
    /// What the answer is called.
    pub output: OutputSpec,
    /// Elastic dimensions and the largest network's lengths.
    #[serde(default)]
    pub dims: BTreeMap<String, usize>,
    /// The largest network, in order.
    pub layer: Vec<Layer>,
    /// Its variants, usually by cost.
    pub variant: Vec<VariantSpec>,
}

/// What comes in.
#[derive(Clone, PartialEq, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct InputSpec {
    /// Its name.
    pub name: String,
    /// What a row is of.
    #[serde(default)]
    pub element: Element,
    /// Its extents without the batch.
    pub shape: Vec<usize>,
}

/// The element type of an input.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Element {
    /// Numbers.
    #[default]
    F32,
    /// Places in a vocabulary.
    I64,
}

/// What the answer is called.
#[derive(Clone, PartialEq, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct OutputSpec {
    /// Its name.
    pub name: String,
}

/// A number, or the name of a dimension.
#[derive(Clone, PartialEq, Eq, Debug, Deserialize)]
#[serde(untagged)]
pub enum Extent {
    /// The same for all variants.
    Fixed(usize),
    /// As long as the variant says.
    Dim(String),
}

/// One subnet.
#[derive(Clone, PartialEq, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct VariantSpec {
    /// Its name.
    pub name: String,
    /// In per cent.
    pub accuracy: f64,
    /// Lengths that are not the largest ones.
    #[serde(default)]
    pub dims: BTreeMap<String, usize>,
    /// Blocks that it leaves out.
    #[serde(default)]
    pub skip: Vec<String>,
}

fn one() -> usize {
    1
}

fn epsilon() -> f32 {
    1e-5
}

/// One layer.
#[derive(Clone, PartialEq, Debug, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case", deny_unknown_fields)]
pub enum Layer {
    /// Convolution over two dimensions.
    Conv {
        /// Of `NAME.weight` and `NAME.bias`.
        name: String,
        /// Channels that come out.
        out: Extent,
        /// In both directions.
        #[serde(default = "one")]
        stride: usize,
        /// Zeros at each side.
        #[serde(default)]
        padding: usize,
    },
    /// Normalisation of channels with each variant's own statistics.
    BatchNorm {
        /// Of `NAME.weight`, `NAME.bias`, `NAME.mean`, `NAME.variance`.
        name: String,
        /// Added to the variance.
        #[serde(default = "epsilon")]
        epsilon: f32,
    },
    /// Normalisation over the features of each token.
    LayerNorm {
        /// Of `NAME.weight` and `NAME.bias`.
        name: String,
        /// Added to the variance.
        #[serde(default = "epsilon")]
        epsilon: f32,
    },
    /// A fully connected layer over the last dimension.
    Linear {
        /// Of `NAME.weight` and `NAME.bias`.
        name: String,
        /// Features that come out.
        out: Extent,
    },
    /// Vectors for tokens.
    Embedding {
        /// Of `NAME.weight`.
        name: String,
        /// Features of each.
        out: Extent,
    },
    /// Vectors for places, added.
    Position {
        /// Of `NAME.weight`.
        name: String,
    },
    /// Attention of tokens to each other.
    Attention {
        /// Of `NAME.query`, `.key`, `.value` and `.out`, each with weight and bias.
        name: String,
        /// How many.
        heads: Extent,
        /// Features of each.
        head_size: usize,
    },
    /// max(x, 0)
    Relu {},
    /// Gaussian error linear unit, exact.
    Gelu {},
    /// Hyperbolic tangent.
    Tanh {},
    /// The largest of each window.
    MaxPool {
        /// Of the window.
        kernel: usize,
        /// In both directions.
        stride: usize,
    },
    /// The mean of each window.
    AveragePool {
        /// Of the window.
        kernel: usize,
        /// In both directions.
        stride: usize,
    },
    /// The mean of each channel.
    GlobalAveragePool {},
    /// The mean of all tokens.
    MeanOfTokens {},
    /// Channels, rows and columns one behind the other.
    Flatten {},
    /// Layers that belong together, which a variant may leave out.
    Block {
        /// By which variants name it.
        name: String,
        /// Its input is added to what its layers come to.
        #[serde(default)]
        residual: bool,
        /// Its layers.
        layer: Vec<Layer>,
        /// What is added instead of its input.
        #[serde(default)]
        shortcut: Vec<Layer>,
    },
}

impl Layer {
    /// For messages: its name, or its kind.
    pub fn called(&self) -> &str {
        match self {
            Self::Conv { name, .. }
            | Self::BatchNorm { name, .. }
            | Self::LayerNorm { name, .. }
            | Self::Linear { name, .. }
            | Self::Embedding { name, .. }
            | Self::Position { name }
            | Self::Attention { name, .. }
            | Self::Block { name, .. } => name,
            Self::Relu {} => "relu",
            Self::Gelu {} => "gelu",
            Self::Tanh {} => "tanh",
            Self::MaxPool { .. } => "max_pool",
            Self::AveragePool { .. } => "average_pool",
            Self::GlobalAveragePool {} => "global_average_pool",
            Self::MeanOfTokens {} => "mean_of_tokens",
            Self::Flatten {} => "flatten",
        }
    }
}

impl Description {
    /// Every layer, also those of blocks and shortcuts.
    pub(super) fn for_each_layer<'a>(&'a self, visit: &mut impl FnMut(&'a Layer)) {
        fn of<'a>(layers: &'a [Layer], visit: &mut impl FnMut(&'a Layer)) {
            for each in layers {
                visit(each);
                if let Layer::Block { layer, shortcut, .. } = each {
                    of(layer, visit);
                    of(shortcut, visit);
                }
            }
        }
        of(&self.layer, visit);
    }

    /// Reads the text.
    ///
    /// # Errors
    /// What is wrong, with its line.
    pub(super) fn parse(text: &str) -> Result<Self, String> {
        toml::from_str(text).map_err(|error| error.to_string().trim_end().to_owned())
    }

    /// The lengths of all dimensions for a variant.
    pub fn dims_of(&self, variant: &VariantSpec) -> BTreeMap<String, usize> {
        let mut dims = self.dims.clone();
        dims.extend(variant.dims.clone());
        dims
    }
}
