//! What of a description can be checked without its weights.

use std::collections::BTreeSet;

use super::{Description, Extent, Layer};
use crate::{Problem, VARIANT_INPUT, VARIANTS_MAX};

/// Blocks within blocks.
const DEPTH_MAX: usize = 8;
/// Layers of a network.
const LAYERS_MAX: usize = 10_000;
/// Keeps products within reach.
const EXTENT_MAX: usize = 1 << 20;

impl Description {
    pub(crate) fn check(&self) -> Result<(), Problem> {
        self.check_names()?;
        for (dim, &most) in &self.dims {
            within(&format!("[dims] {dim}"), most)?;
        }
        for &extent in &self.input.shape {
            within("[input] shape", extent)?;
        }
        let mut seen = Seen::default();
        self.check_layers(&self.layer, 0, &mut seen)?;
        self.check_variants(&seen.blocks)
    }

    fn check_names(&self) -> Result<(), Problem> {
        for (place, name) in
            [("[input] name", &self.input.name), ("[output] name", &self.output.name)]
        {
            let plain = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '-';
            if name.is_empty() || !name.chars().all(plain) || name == VARIANT_INPUT {
                let fix =
                    format!("use letters, digits, - and _, and another than `{VARIANT_INPUT}`");
                return Err(Problem::new(place, format!("is `{name}`"), fix));
            }
        }
        if self.input.name == self.output.name {
            return Err(Problem::new("[output] name", "is the input's", "give it another"));
        }
        Ok(())
    }

    fn check_layers(&self, layers: &[Layer], depth: usize, seen: &mut Seen) -> Result<(), Problem> {
        for layer in layers {
            seen.layers += 1;
            if depth > DEPTH_MAX || seen.layers > LAYERS_MAX {
                let what = format!(
                    "there are more than {LAYERS_MAX} layers, or more than {DEPTH_MAX} blocks in each other"
                );
                return Err(Problem::new("[[layer]]", what, "leave some out"));
            }
            self.check_layer(layer, seen)?;
            if let Layer::Block { name, layer, shortcut, residual } = layer {
                if layer.is_empty() {
                    return Err(Problem::new(block(name), "has no layers", "remove it"));
                }
                if !residual && !shortcut.is_empty() {
                    let what = "has a shortcut and is not residual";
                    return Err(Problem::new(block(name), what, "set residual = true"));
                }
                self.check_layers(layer, depth + 1, seen)?;
                self.check_layers(shortcut, depth + 1, seen)?;
            }
        }
        Ok(())
    }

    fn check_layer(&self, layer: &Layer, seen: &mut Seen) -> Result<(), Problem> {
        let place = || format!("layer `{}`", layer.called());
        match layer {
            Layer::Conv { out, stride, padding, .. } => {
                within(&place(), *stride)?;
                within(&place(), padding + 1)?;
                self.check_extent(&place(), out)?;
            }
            Layer::Linear { out, .. } | Layer::Embedding { out, .. } => {
                self.check_extent(&place(), out)?;
            }
            Layer::Attention { heads, head_size, .. } => {
                within(&place(), *head_size)?;
                self.check_extent(&place(), heads)?;
            }
            Layer::MaxPool { kernel, stride } | Layer::AveragePool { kernel, stride } => {
                within(&place(), *kernel)?;
                within(&place(), *stride)?;
            }
            Layer::Block { name, .. } if !seen.blocks.insert(name.clone()) => {
                let what = "another block has this name";
                return Err(Problem::new(block(name), what, "give each its own"));
            }
            _ => {}
        }
        Ok(())
    }

    fn check_extent(&self, place: &str, extent: &Extent) -> Result<(), Problem> {
        match extent {
            Extent::Fixed(extent) => within(place, *extent),
            Extent::Dim(dim) if self.dims.contains_key(dim) => Ok(()),
            Extent::Dim(dim) => {
                let what = format!("there is no dimension `{dim}`");
                Err(Problem::new(place, what, format!("add it: [dims] {dim} = …")))
            }
        }
    }

    fn check_variants(&self, blocks: &BTreeSet<String>) -> Result<(), Problem> {
        if self.variant.is_empty() || self.variant.len() > VARIANTS_MAX {
            let what = format!("there are {}", self.variant.len());
            return Err(Problem::new("[[variant]]", what, format!("list 1 to {VARIANTS_MAX}")));
        }
        let mut names = BTreeSet::new();
        for variant in &self.variant {
            let place = format!("variant `{}`", variant.name);
            if variant.name.is_empty() || !names.insert(&variant.name) {
                return Err(Problem::new(
                    place,
                    "has another's name, or none",
                    "give each its own",
                ));
            }
            if !(variant.accuracy > 0.0 && variant.accuracy <= 100.0) {
                let what = format!("accuracy is {}", variant.accuracy);
                return Err(Problem::new(place, what, "give it in per cent"));
            }
            for (dim, &length) in &variant.dims {
                let Some(&most) = self.dims.get(dim) else {
                    let known: Vec<&str> = self.dims.keys().map(String::as_str).collect();
                    let what = format!("there is no dimension `{dim}`");
                    let fix = format!("add it to [dims], which has: {}", known.join(", "));
                    return Err(Problem::new(place, what, fix));
                };
                if length == 0 || length > most {
                    let what = format!("`{dim}` is {length}, and the largest is {most}");
                    return Err(Problem::new(place, what, "correct it, or [dims]"));
                }
            }
            if let Some(name) = variant.skip.iter().find(|name| !blocks.contains(*name)) {
                let what = format!("skips `{name}`, and no block has that name");
                let known: Vec<&str> = blocks.iter().map(String::as_str).collect();
                return Err(Problem::new(place, what, format!("choose from {}", known.join(", "))));
            }
        }
        Ok(())
    }
}

#[derive(Default)]
struct Seen {
    layers: usize,
    blocks: BTreeSet<String>,
}

fn block(name: &str) -> String {
    format!("block `{name}`")
}

fn within(place: &str, extent: usize) -> Result<(), Problem> {
    if (1..=EXTENT_MAX).contains(&extent) {
        return Ok(());
    }
    Err(Problem::new(
        place,
        format!("has a length of {extent}"),
        format!("give one from 1 to {EXTENT_MAX}"),
    ))
}
