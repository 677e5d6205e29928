//! Random checkpoints.

use std::collections::BTreeMap;

use baton_supernet::{
    Checkpoint, Description, Element, Extent, InputSpec, Layer, OutputSpec, Tensor, VariantSpec,
};
use rand::rngs::StdRng;
use rand::{RngExt as _, SeedableRng as _};

/// Words of a vocabulary.
pub(crate) const WORDS: usize = 11;

/// A checkpoint in the making.
struct Draw {
    rng: StdRng,
    dims: BTreeMap<String, usize>,
    weights: BTreeMap<String, Tensor>,
    /// Blocks that may be skipped.
    blocks: Vec<String>,
    variants: usize,
}

impl Draw {
    fn new(seed: u64) -> Self {
        let mut rng = StdRng::seed_from_u64(seed);
        let variants = rng.random_range(2..6);
        Self { rng, dims: BTreeMap::new(), weights: BTreeMap::new(), blocks: vec![], variants }
    }

    fn tensor(&mut self, name: &str, shape: &[usize]) {
        let count: usize = shape.iter().product();
        let data = (0..count).map(|_| self.rng.random_range(-0.7..0.7)).collect();
        self.weights.insert(name.to_owned(), Tensor { shape: shape.to_vec(), data });
    }

    /// A dimension of two to `most`; the name stands for it.
    fn dim(&mut self, name: &str, most: usize) -> Extent {
        self.dims.insert(name.to_owned(), self.rng.random_range(2..=most));
        Extent::Dim(name.to_owned())
    }

    fn most(&self, extent: &Extent) -> usize {
        match extent {
            Extent::Fixed(length) => *length,
            Extent::Dim(dim) => self.dims[dim],
        }
    }

    fn conv(
        &mut self,
        name: &str,
        from: &Extent,
        out: &Extent,
        kernel: usize,
        stride: usize,
    ) -> Layer {
        let shape = [self.most(out), self.most(from), kernel, kernel];
        self.tensor(&format!("{name}.weight"), &shape);
        if self.rng.random() {
            self.tensor(&format!("{name}.bias"), &shape[..1]);
        }
        Layer::Conv { name: name.into(), out: out.clone(), stride, padding: kernel / 2 }
    }

    fn batch_norm(&mut self, name: &str, channels: &Extent) -> Layer {
        let channels = self.most(channels);
        for part in ["weight", "bias"] {
            self.tensor(&format!("{name}.{part}"), &[channels]);
        }
        for part in ["mean", "variance"] {
            self.tensor(&format!("{name}.{part}"), &[self.variants, channels]);
        }
        let variance = self.weights.get_mut(&format!("{name}.variance")).unwrap();
        variance.data.iter_mut().for_each(|value| *value = value.abs() + 0.2);
        Layer::BatchNorm { name: name.into(), epsilon: 1e-5 }
    }

    fn linear(&mut self, name: &str, features: usize, out: &Extent) -> Layer {
        self.tensor(&format!("{name}.weight"), &[self.most(out), features]);
        if self.rng.random() {
            self.tensor(&format!("{name}.bias"), &[self.most(out)]);
        }
        Layer::Linear { name: name.into(), out: out.clone() }
    }

    fn layer_norm(&mut self, name: &str, features: usize) -> Layer {
        for part in ["weight", "bias"] {
            self.tensor(&format!("{name}.{part}"), &[features]);
        }
        Layer::LayerNorm { name: name.into(), epsilon: 1e-5 }
    }

    fn block(&mut self, name: &str, residual: bool, layer: Vec<Layer>) -> Layer {
        self.blocks.push(name.to_owned());
        Layer::Block { name: name.into(), residual, layer, shortcut: vec![] }
    }

    fn variant(&mut self, number: usize) -> VariantSpec {
        let dims: Vec<(String, usize)> = self.dims.clone().into_iter().collect();
        let dims = dims.into_iter().filter_map(|(dim, most)| {
            let length = self.rng.random_range(1..=most);
            self.rng.random::<bool>().then_some((dim, length))
        });
        let dims = dims.collect();
        let blocks = self.blocks.clone();
        let skip = blocks.into_iter().filter(|_| self.rng.random_range(0..3) == 0).collect();
        VariantSpec { name: format!("v{number}"), accuracy: 50.0 + number as f64, dims, skip }
    }

    fn finish(mut self, shape: &[usize], element: Element, layer: Vec<Layer>) -> Checkpoint {
        let variant = (0..self.variants).map(|number| self.variant(number)).collect();
        let description = Description {
            name: "drawn".into(),
            weights: "weights.safetensors".into(),
            input: InputSpec { name: "x".into(), element, shape: shape.to_vec() },
            output: OutputSpec { name: "y".into() },
            dims: self.dims,
            layer,
            variant,
        };
        Checkpoint { description, weights: self.weights }
    }
}

/// Convolutions, of which some are skipped.
pub(crate) fn convolutions(seed: u64) -> Checkpoint {
    let mut draw = Draw::new(seed);
    let whole = draw.rng.random_range(5..9);
    let (wide, classes) = (draw.dim("wide", 6), Extent::Fixed(3));
    let kernel = [1, 3, 5][draw.rng.random_range(0..3)];
    let stem = draw.conv("stem", &Extent::Fixed(2), &wide, kernel, 1);
    let mut layers = vec![stem, draw.batch_norm("stem.norm", &wide), Layer::Relu {}];
    for at in 0..draw.rng.random_range(1..4) {
        let inner = draw.dim(&format!("inner{at}"), 5);
        let [grow, shrink] = [format!("b{at}.grow"), format!("b{at}.shrink")];
        let inside = vec![
            draw.conv(&grow, &wide, &inner, 3, 1),
            draw.batch_norm(&format!("{grow}.norm"), &inner),
            Layer::Relu {},
            draw.conv(&shrink, &inner, &wide, 3, 1),
        ];
        let residual = draw.rng.random();
        layers.push(draw.block(&format!("b{at}"), residual, inside));
    }
    let more = draw.dim("more", 6);
    let layer = vec![draw.conv("down", &wide, &more, 3, 2), draw.batch_norm("down.norm", &more)];
    let shortcut = vec![draw.conv("short", &wide, &more, 1, 2)];
    layers.push(Layer::Block { name: "down".into(), residual: true, layer, shortcut });
    let side = (whole - 1) / 2 + 1;
    let features = match draw.rng.random_range(0..3) {
        0 => {
            layers.push(Layer::GlobalAveragePool {});
            draw.most(&more)
        }
        kind => {
            let pool = [
                Layer::MaxPool { kernel: 2, stride: 1 },
                Layer::AveragePool { kernel: 2, stride: 1 },
            ];
            layers.extend([pool[kind - 1].clone(), Layer::Flatten {}]);
            draw.most(&more) * (side - 1) * (side - 1)
        }
    };
    let hidden = draw.dim("hidden", 7);
    layers.extend([draw.linear("hidden", features, &hidden), Layer::Tanh {}]);
    let hidden = draw.most(&hidden);
    layers.push(draw.linear("classes", hidden, &classes));
    draw.finish(&[2, whole, whole], Element::F32, layers)
}

/// A transformer with elastic depth, heads, features and hidden layers, over words or over rows of numbers.
pub(crate) fn transformer(seed: u64) -> Checkpoint {
    let mut draw = Draw::new(seed);
    let (tokens, wide) = (draw.rng.random_range(2..6), draw.dim("wide", 8));
    let features = draw.most(&wide);
    let (first, shape, element) = if draw.rng.random() {
        draw.tensor("words.weight", &[WORDS, features]);
        (Layer::Embedding { name: "words".into(), out: wide.clone() }, vec![tokens], Element::I64)
    } else {
        (draw.linear("rows", 4, &wide), vec![tokens, 4], Element::F32)
    };
    draw.tensor("places.weight", &[tokens, features]);
    let mut layers = vec![first, Layer::Position { name: "places".into() }];
    for at in 0..draw.rng.random_range(1..4) {
        let head_size = draw.rng.random_range(1..4);
        let heads = draw.dim(&format!("heads{at}"), 4);
        let inner = Extent::Fixed(draw.most(&heads) * head_size);
        let name = format!("l{at}.attention");
        for part in ["query", "key", "value"] {
            draw.linear(&format!("{name}.{part}"), features, &inner);
        }
        draw.linear(&format!("{name}.out"), draw.most(&inner), &Extent::Fixed(features));
        let norm = draw.layer_norm(&format!("l{at}.before"), features);
        let attention = vec![norm, Layer::Attention { name, heads, head_size }];
        let hidden = draw.dim(&format!("hidden{at}"), 9);
        let mut rest = vec![
            draw.layer_norm(&format!("l{at}.between"), features),
            draw.linear(&format!("l{at}.grow"), features, &hidden),
            Layer::Gelu {},
        ];
        let hidden = draw.most(&hidden);
        rest.push(draw.linear(&format!("l{at}.shrink"), hidden, &wide));
        let inside = vec![
            draw.block(&format!("l{at}.first"), true, attention),
            draw.block(&format!("l{at}.second"), true, rest),
        ];
        layers.push(draw.block(&format!("l{at}"), false, inside));
    }
    layers.extend([draw.layer_norm("last", features), Layer::MeanOfTokens {}]);
    layers.push(draw.linear("classes", features, &Extent::Fixed(3)));
    draw.finish(&shape, element, layers)
}
