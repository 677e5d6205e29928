//! The layers of one variant, computed one number after the other, for one row.

use std::collections::BTreeMap;

use baton_supernet::{Checkpoint, Extent, Layer};

/// Numbers in rows.
#[derive(Clone)]
pub(crate) struct Values {
    pub(crate) shape: Vec<usize>,
    pub(crate) data: Vec<f64>,
}

/// A variant of a checkpoint.
pub(crate) struct Plain<'a> {
    checkpoint: &'a Checkpoint,
    variant: usize,
    dims: BTreeMap<String, usize>,
}

impl<'a> Plain<'a> {
    pub(crate) fn new(checkpoint: &'a Checkpoint, variant: usize) -> Self {
        let dims = checkpoint.description.dims_of(&checkpoint.description.variant[variant]);
        Self { checkpoint, variant, dims }
    }

    pub(crate) fn answer(&self, row: Values) -> Values {
        self.all(row, &self.checkpoint.description.layer)
    }

    fn all(&self, x: Values, layers: &[Layer]) -> Values {
        layers.iter().fold(x, |x, layer| self.one(x, layer))
    }

    fn length(&self, extent: &Extent) -> usize {
        match extent {
            Extent::Fixed(length) => *length,
            Extent::Dim(dim) => self.dims[dim],
        }
    }

    /// One number of a tensor, which lies as the largest network has it.
    fn weight(&self, name: &str, place: &[usize]) -> f64 {
        let tensor = &self.checkpoint.weights[name];
        let at = place.iter().zip(&tensor.shape).fold(0, |at, (place, extent)| at * extent + place);
        f64::from(tensor.data[at])
    }

    fn bias(&self, name: &str, at: usize) -> f64 {
        let name = format!("{name}.bias");
        if self.checkpoint.weights.contains_key(&name) { self.weight(&name, &[at]) } else { 0.0 }
    }

    fn one(&self, x: Values, layer: &Layer) -> Values {
        match layer {
            Layer::Conv { name, out, stride, padding } => {
                self.conv(&x, name, self.length(out), *stride, *padding)
            }
            Layer::BatchNorm { name, epsilon } => self.batch_norm(x, name, f64::from(*epsilon)),
            Layer::LayerNorm { name, epsilon } => self.layer_norm(x, name, f64::from(*epsilon)),
            Layer::Linear { name, out } => self.linear(&x, name, self.length(out)),
            Layer::Embedding { name, out } => {
                let out = self.length(out);
                let word = |&word: &f64| {
                    (0..out)
                        .map(move |at| self.weight(&format!("{name}.weight"), &[word as usize, at]))
                };
                let data = x.data.iter().flat_map(word).collect();
                Values { shape: vec![x.shape[0], out], data }
            }
            Layer::Position { name } => {
                let features = x.shape[1];
                mapped(x, |at, value| {
                    value + self.weight(&format!("{name}.weight"), &[at / features, at % features])
                })
            }
            Layer::Attention { name, heads, head_size } => {
                self.attention(&x, name, self.length(heads), *head_size)
            }
            Layer::Relu {} => mapped(x, |_, value| value.max(0.0)),
            Layer::Gelu {} => {
                mapped(x, |_, value| value * (1.0 + erf(value / std::f64::consts::SQRT_2)) / 2.0)
            }
            Layer::Tanh {} => mapped(x, |_, value| value.tanh()),
            Layer::MaxPool { kernel, stride } => {
                pool(&x, *kernel, *stride, |window| window.iter().copied().fold(f64::MIN, f64::max))
            }
            Layer::AveragePool { kernel, stride } => pool(&x, *kernel, *stride, mean),
            Layer::GlobalAveragePool {} => {
                let data = x.data.chunks(x.shape[1] * x.shape[2]).map(mean).collect();
                Values { shape: vec![x.shape[0]], data }
            }
            Layer::MeanOfTokens {} => {
                let [tokens, features] = [x.shape[0], x.shape[1]];
                let of = |at: usize| {
                    mean(&(0..tokens).map(|t| x.data[t * features + at]).collect::<Vec<_>>())
                };
                Values { shape: vec![features], data: (0..features).map(of).collect() }
            }
            Layer::Flatten {} => Values { shape: vec![x.data.len()], data: x.data },
            Layer::Block { name, residual, layer, shortcut } => {
                let variant = &self.checkpoint.description.variant[self.variant];
                if variant.skip.contains(name) {
                    return x;
                }
                let out = self.all(x.clone(), layer);
                if !residual {
                    return out;
                }
                let other = self.all(x, shortcut);
                mapped(out, |at, value| value + other.data[at])
            }
        }
    }

    fn conv(&self, x: &Values, name: &str, out: usize, stride: usize, padding: usize) -> Values {
        let weight = format!("{name}.weight");
        let kernel = &self.checkpoint.weights[&weight].shape[2..];
        let [rows, columns] =
            [1, 2].map(|axis| (x.shape[axis] + 2 * padding - kernel[axis - 1]) / stride + 1);
        let mut data = Vec::new();
        for (o, row, column) in places(out, rows, columns) {
            let mut sum = self.bias(name, o);
            for (i, k, l) in places(x.shape[0], kernel[0], kernel[1]) {
                let (from, at) = (row * stride + k, column * stride + l);
                let inside = |at: usize, side: usize| (padding..side + padding).contains(&at);
                if inside(from, x.shape[1]) && inside(at, x.shape[2]) {
                    let at = (i * x.shape[1] + from - padding) * x.shape[2] + at - padding;
                    sum += self.weight(&weight, &[o, i, k, l]) * x.data[at];
                }
            }
            data.push(sum);
        }
        Values { shape: vec![out, rows, columns], data }
    }

    fn batch_norm(&self, x: Values, name: &str, epsilon: f64) -> Values {
        let each = x.data.len() / x.shape[0];
        let own =
            |what: &str, at: usize| self.weight(&format!("{name}.{what}"), &[self.variant, at]);
        mapped(x, |at, value| {
            let channel = at / each;
            let normal =
                (value - own("mean", channel)) / (own("variance", channel) + epsilon).sqrt();
            normal * self.weight(&format!("{name}.weight"), &[channel]) + self.bias(name, channel)
        })
    }

    fn layer_norm(&self, x: Values, name: &str, epsilon: f64) -> Values {
        let features = *x.shape.last().unwrap();
        let normal = |row: &[f64]| {
            let centre = mean(row);
            let variance =
                mean(&row.iter().map(|value| (value - centre).powi(2)).collect::<Vec<_>>());
            let normal = move |value: &f64| (value - centre) / (variance + epsilon).sqrt();
            row.iter().map(normal).collect::<Vec<f64>>()
        };
        let data = x.data.chunks(features).flat_map(normal).collect();
        mapped(Values { shape: x.shape, data }, |at, value| {
            let at = at % features;
            value * self.weight(&format!("{name}.weight"), &[at]) + self.bias(name, at)
        })
    }

    fn linear(&self, x: &Values, name: &str, out: usize) -> Values {
        let features = *x.shape.last().unwrap();
        let weight = format!("{name}.weight");
        let of = |row: &[f64], o: usize| {
            let products =
                row.iter().enumerate().map(|(i, value)| value * self.weight(&weight, &[o, i]));
            self.bias(name, o) + products.sum::<f64>()
        };
        let rows = x.data.chunks(features);
        let data = rows.flat_map(|row| (0..out).map(move |o| of(row, o))).collect();
        let mut shape = x.shape.clone();
        *shape.last_mut().unwrap() = out;
        Values { shape, data }
    }

    fn attention(&self, x: &Values, name: &str, heads: usize, size: usize) -> Values {
        let [tokens, features] = [x.shape[0], x.shape[1]];
        let inner = heads * size;
        let [q, k, v] = ["query", "key", "value"]
            .map(|part| self.linear(x, &format!("{name}.{part}"), inner).data);
        let mut mixed = vec![0.0; tokens * inner];
        for (head, token, _) in places(heads, tokens, 1) {
            let score = |other: usize| {
                let of = |f: usize| {
                    q[token * inner + head * size + f] * k[other * inner + head * size + f]
                };
                ((0..size).map(of).sum::<f64>() / (size as f64).sqrt()).exp()
            };
            let scores: Vec<f64> = (0..tokens).map(score).collect();
            let whole: f64 = scores.iter().sum();
            for (other, f, _) in places(tokens, size, 1) {
                let at = head * size + f;
                mixed[token * inner + at] += scores[other] / whole * v[other * inner + at];
            }
        }
        self.linear(
            &Values { shape: vec![tokens, inner], data: mixed },
            &format!("{name}.out"),
            features,
        )
    }
}

fn places(a: usize, b: usize, c: usize) -> impl Iterator<Item = (usize, usize, usize)> {
    (0..a).flat_map(move |x| (0..b).flat_map(move |y| (0..c).map(move |z| (x, y, z))))
}

fn mapped(x: Values, of: impl Fn(usize, f64) -> f64) -> Values {
    let data = x.data.iter().enumerate().map(|(at, &value)| of(at, value)).collect();
    Values { shape: x.shape, data }
}

fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len() as f64
}

fn pool(x: &Values, kernel: usize, stride: usize, of: impl Fn(&[f64]) -> f64) -> Values {
    let [rows, columns] = [1, 2].map(|axis| (x.shape[axis] - kernel) / stride + 1);
    let mut data = Vec::new();
    for (channel, row, column) in places(x.shape[0], rows, columns) {
        let at = |k: usize, l: usize| {
            (channel * x.shape[1] + row * stride + k) * x.shape[2] + column * stride + l
        };
        let window: Vec<f64> =
            places(kernel, kernel, 1).map(|(k, l, _)| x.data[at(k, l)]).collect();
        data.push(of(&window));
    }
    Values { shape: vec![x.shape[0], rows, columns], data }
}

/// The error function, by its series.
fn erf(x: f64) -> f64 {
    if x.abs() > 5.0 {
        return x.signum();
    }
    let (mut term, mut sum) = (x, x);
    for n in 1..120 {
        let n = f64::from(n);
        term *= -x * x / n;
        sum += term / (2.0 * n + 1.0);
    }
    sum * 2.0 / std::f64::consts::PI.sqrt()
}
