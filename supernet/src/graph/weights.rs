//! Weights of which each variant uses the first part, and statistics of which each has its own.

use super::{Graph, VARIANT_ROW};
use crate::checkpoint::Tensor;
use crate::proto::{Attribute, TensorProto, integer};
use crate::size::{Size, shape_text};
use crate::{Problem, VARIANT_INPUT};

impl Graph<'_> {
    /// Whether the checkpoint has a tensor.
    pub(crate) fn has(&self, name: &str) -> bool {
        self.checkpoint.weights.contains_key(name)
    }

    /// The tensor's shape, for messages and kernels.
    pub(crate) fn shape_of(&self, name: &str) -> Result<&[usize], Problem> {
        self.tensor(name).map(|tensor| &tensor.shape[..])
    }

    fn tensor(&self, name: &str) -> Result<&Tensor, Problem> {
        self.checkpoint.weights.get(name).ok_or_else(|| {
            let weights = self.checkpoint.description.weights.display();
            let what = format!("is not in {weights}");
            Problem::new(format!("tensor `{name}`"), what, "store it, or correct the layer's name")
        })
    }

    /// The part of a weight that the variant uses.
    pub(crate) fn weight(&mut self, name: &str, shape: &[Size]) -> Result<String, Problem> {
        let cut = self.largest(name, shape)?;
        self.constant(name, &cut);
        Ok(self.sliced(name, shape))
    }

    /// The part of a matrix that the variant uses, with rows and columns exchanged.
    pub(crate) fn transposed(&mut self, name: &str, shape: &[Size; 2]) -> Result<String, Problem> {
        let cut = self.largest(name, shape)?.transposed();
        let name = format!("{name}.transposed");
        self.constant(&name, &cut);
        Ok(self.sliced(&name, &[shape[1].clone(), shape[0].clone()]))
    }

    /// The part of a vector that the variant uses, of the variant's own numbers: the checkpoint has one row for each.
    pub(crate) fn statistic(&mut self, name: &str, size: &Size) -> Result<String, Problem> {
        let variants = self.checkpoint.description.variant.len();
        let tensor = self.checked(name, &[Size::fixed(variants), size.clone()])?;
        let rows = tensor.rows(self.chosen).cut(&[self.chosen.len(), self.most(size)]);
        if self.chosen.len() == 1 {
            self.constant(name, &Tensor { shape: vec![rows.data.len()], data: rows.data });
            return Ok(name.to_owned());
        }
        self.constant(name, &rows);
        let axis = [Attribute::int("axis", 0)];
        let row = self.node("Gather", &[name, VARIANT_INPUT], &axis);
        Ok(self.sliced(&row, std::slice::from_ref(size)))
    }

    /// Of a number below 0 a variance has no root: every answer would be NaN.
    pub(crate) fn refuse_negative(&self, name: &str) -> Result<(), Problem> {
        match self.tensor(name)?.data.iter().position(|&number| number < 0.0) {
            None => Ok(()),
            Some(at) => {
                let what = format!("number {at} of it is below 0");
                Err(Problem::new(format!("tensor `{name}`"), what, "store the variance itself"))
            }
        }
    }

    /// As much of a tensor as the largest of the variants uses.
    fn largest(&self, name: &str, shape: &[Size]) -> Result<Tensor, Problem> {
        let extents: Vec<usize> = shape.iter().map(|size| self.most(size)).collect();
        Ok(self.checked(name, shape)?.cut(&extents))
    }

    fn checked(&self, name: &str, shape: &[Size]) -> Result<&Tensor, Problem> {
        let tensor = self.tensor(name)?;
        let whole: Vec<usize> = shape.iter().map(|size| self.whole(size)).collect();
        if tensor.shape == whole {
            return Ok(tensor);
        }
        let wanted = shape_text(shape);
        let what = format!("is {:?}, and {whole:?} is wanted ({wanted})", tensor.shape);
        Err(Problem::new(format!("tensor `{name}`"), what, "correct the tensor or the layers"))
    }

    fn constant(&mut self, name: &str, tensor: &Tensor) {
        if self.initialized.insert(name.to_owned()) {
            self.initializers.push(TensorProto::floats(name, &tensor.shape, &tensor.data));
        }
    }

    /// The first part of a value in each dimension in which the variants differ.
    fn sliced(&mut self, value: &str, shape: &[Size]) -> String {
        let elastic = |at: &usize| self.extent(&shape[*at]).is_none();
        let axes: Vec<usize> = (0..shape.len()).filter(elastic).collect();
        if axes.is_empty() {
            return value.to_owned();
        }
        let ends: Vec<String> = axes.iter().map(|&at| self.end(&shape[at])).collect();
        let ends = self.joined(&ends);
        let starts = vec![0; axes.len()];
        let starts = self.integers(&format!("control.starts.{}", axes.len()), &starts);
        let places: Vec<i64> = axes.iter().map(|&at| integer(at)).collect();
        let text: Vec<String> = axes.iter().map(ToString::to_string).collect();
        let axes = self.integers(&format!("control.axes.{}", text.join(".")), &places);
        self.node("Slice", &[value, &starts, &ends, &axes], &[])
    }

    /// Where the variant's part ends, with one dimension.
    fn end(&mut self, size: &Size) -> String {
        let dim = size.dim.as_deref().expect("a length that differs has a dimension");
        let table = format!("control.lengths.{dim}.{}", size.each);
        let lengths: Vec<i64> = self.lengths(size).iter().map(|&length| integer(length)).collect();
        let table = self.integers(&table, &lengths);
        let end = format!("control.length.{dim}.{}", size.each);
        self.control("Gather", &[&table, VARIANT_ROW], &end, &[Attribute::int("axis", 0)]);
        end
    }

    fn joined(&mut self, ends: &[String]) -> String {
        let [one] = ends else {
            let name = format!("control.ends.{}", ends.join("."));
            let ends: Vec<&str> = ends.iter().map(String::as_str).collect();
            self.control("Concat", &ends, &name, &[Attribute::int("axis", 0)]);
            return name;
        };
        one.clone()
    }
}
