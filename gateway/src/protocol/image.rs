//! A JPEG image as a model's input: decoded, scaled to the model's size, and written where backends read it.
//!
//! Nothing here trusts the image: it has bounds, and what is wrong with it becomes words.

use baton_client::{ElementType, Extent, TensorSpec};
use bytes::{Buf, Bytes};
use zune_jpeg::JpegDecoder;
use zune_jpeg::zune_core::bytestream::ZCursor;
use zune_jpeg::zune_core::colorspace::ColorSpace;
use zune_jpeg::zune_core::options::DecoderOptions;

use super::request::{Source, Written};

/// Most pixels of an image in one direction.
const SIDE_MAX: usize = 4_096;

/// Bytes before each element of such a tensor: how many it has.
const LENGTH: usize = 4;
/// The type of a tensor whose elements are texts or files.
const BYTES: &str = "BYTES";

/// An image that came as a tensor: BYTES of one element.
///
/// The request then says of its input what the model takes, as if it had brought that. `None`: the request has no such tensor, and
/// is as it was.
///
/// # Errors
/// It has such a tensor and no image in it, in words.
pub(crate) fn take_from(
    written: &mut Written<'_>,
    binary: &mut impl Buf,
    inputs: &[TensorSpec],
) -> Result<Option<Bytes>, String> {
    let ([input], [spec]) = (&mut written.inputs[..], inputs) else { return Ok(None) };
    if input.datatype != BYTES {
        return Ok(None);
    }
    let name = &input.name;
    if input.shape.iter().any(|&extent| extent != 1) {
        return Err(format!("input {name:?} is {:?} images: send one in a request", input.shape));
    }
    let has = binary.remaining();
    let is_binary = matches!(input.source, Some(Source::Binary(_))) && has >= LENGTH;
    if !is_binary || binary.get_u32_le() as usize != has - LENGTH {
        return Err(format!(
            "input {name:?} is no element of BYTES: give its length, 4 bytes, and the file"
        ));
    }
    input.datatype = spec.element.oip_name().to_owned();
    input.shape = std::iter::once(1).chain(spec.shape.iter().map(|extent| extent.max())).collect();
    let elements: usize = input.shape.iter().map(|&extent| extent as usize).product();
    input.source = Some(Source::Binary(elements * spec.element.bytes()));
    Ok(Some(binary.copy_to_bytes(has - LENGTH)))
}

/// How a model takes images: `[[gateway.image]]` of the cluster file.
#[derive(Clone, PartialEq, Debug)]
pub struct ImageStep {
    /// The model.
    pub model: String,
    /// Of each channel: taken off values between 0 and 1. One for all channels, or one for each.
    pub mean: Vec<f32>,
    /// Of each channel: what is left is divided by it.
    pub std: Vec<f32>,
}

/// The tensor that an image becomes.
#[derive(Clone, PartialEq, Debug)]
pub struct ImageTensor {
    channels: usize,
    height: usize,
    width: usize,
    channels_last: bool,
    element: ElementType,
    mean: Vec<f32>,
    std: Vec<f32>,
}

impl ImageTensor {
    /// That of a model with these inputs.
    ///
    /// # Errors
    /// Its input is no image, in words.
    pub fn of(step: &ImageStep, inputs: &[TensorSpec]) -> Result<Self, String> {
        let [input] = inputs else {
            return Err(format!(
                "{} takes {} tensors, and an image is one",
                step.model,
                inputs.len()
            ));
        };
        let sides: Option<Vec<usize>> = input.shape.iter().map(fixed).collect();
        let known = matches!(input.element, ElementType::F32 | ElementType::U8);
        let image = match sides.as_deref() {
            Some(&[channels @ (1 | 3), height, width]) => Some((channels, height, width, false)),
            Some(&[height, width, channels @ (1 | 3)]) => Some((channels, height, width, true)),
            _ => None,
        };
        let Some((channels, height, width, channels_last)) = image.filter(|_| known) else {
            let text = "and an image is FP32 or UINT8 of 1 or 3 channels, height and width";
            return Err(format!("{} takes {input}, {text}", step.model));
        };
        if [&step.mean, &step.std].into_iter().any(|of| ![1, channels].contains(&of.len())) {
            return Err(format!(
                "mean and std have 1 value or {channels}, as {} has channels",
                step.model
            ));
        }
        let (element, mean, std) = (input.element, step.mean.clone(), step.std.clone());
        Ok(Self { channels, height, width, channels_last, element, mean, std })
    }

    /// Decodes a JPEG and writes it as this tensor into `out`, which is as long as the tensor.
    ///
    /// # Errors
    /// It is no JPEG, or one that is too large, in words.
    pub fn write(&self, jpeg: &[u8], out: &mut [u8]) -> Result<(), String> {
        // 1. Pixels, channel by channel in each.
        let image = Pixels::decode(jpeg, self.channels)?;
        // 2. Each value of the tensor from the four pixels around its place.
        for row in 0..self.height {
            for column in 0..self.width {
                let place = image.between((row, self.height), (column, self.width));
                for channel in 0..self.channels {
                    let at = match self.channels_last {
                        true => (row * self.width + column) * self.channels + channel,
                        false => (channel * self.height + row) * self.width + column,
                    };
                    self.put(out, at, channel, image.value(&place, channel));
                }
            }
        }
        Ok(())
    }

    fn put(&self, out: &mut [u8], at: usize, channel: usize, value: f32) {
        if self.element == ElementType::U8 {
            out[at] = value.round() as u8;
            return;
        }
        let of = |values: &[f32]| values[channel % values.len()];
        let scaled = (value / 255.0 - of(&self.mean)) / of(&self.std);
        out[4 * at..4 * at + 4].copy_from_slice(&scaled.to_le_bytes());
    }
}

fn fixed(extent: &Extent) -> Option<usize> {
    match extent {
        Extent::Fixed(extent) => Some(*extent as usize),
        Extent::UpTo(_) => None,
    }
}

/// A decoded image.
struct Pixels {
    bytes: Vec<u8>,
    width: usize,
    height: usize,
    channels: usize,
}

/// A place between pixels: the two rows and columns around it, and how far it is from the first of each.
struct Between {
    rows: [usize; 2],
    columns: [usize; 2],
    down: f32,
    right: f32,
}

impl Pixels {
    fn decode(jpeg: &[u8], channels: usize) -> Result<Self, String> {
        let colours = if channels == 1 { ColorSpace::Luma } else { ColorSpace::RGB };
        let options = DecoderOptions::default().jpeg_set_out_colorspace(colours);
        let options = options.set_max_width(SIDE_MAX).set_max_height(SIDE_MAX);
        let mut decoder = JpegDecoder::new_with_options(ZCursor::new(jpeg), options);
        let bytes =
            decoder.decode().map_err(|error| format!("no JPEG that can be read: {error}"))?;
        let (width, height) = decoder.dimensions().unwrap_or_default();
        let whole = !bytes.is_empty() && bytes.len() == width * height * channels;
        let image = Self { bytes, width, height, channels };
        whole
            .then_some(image)
            .ok_or_else(|| String::from("a JPEG without pixels of these channels"))
    }

    /// Where the middle of this row and column of the tensor lies in the image.
    fn between(&self, (row, rows): (usize, usize), (column, columns): (usize, usize)) -> Between {
        let (rows, down) = around(row, rows, self.height);
        let (columns, right) = around(column, columns, self.width);
        Between { rows, columns, down, right }
    }

    fn value(&self, place: &Between, channel: usize) -> f32 {
        let pixel = |row: usize, column: usize| {
            f32::from(self.bytes[(row * self.width + column) * self.channels + channel])
        };
        let [upper, lower] = place.rows.map(|row| {
            let [left, right] = place.columns.map(|column| pixel(row, column));
            left + (right - left) * place.right
        });
        upper + (lower - upper) * place.down
    }
}

/// The two of `pixels` around the middle of the `at`-th of `all` equal parts, and how far it is from the first.
fn around(at: usize, all: usize, pixels: usize) -> ([usize; 2], f32) {
    let middle = (at as f32 + 0.5) * pixels as f32 / all as f32 - 0.5;
    let middle = middle.clamp(0.0, (pixels - 1) as f32);
    let first = middle as usize;
    ([first, (first + 1).min(pixels - 1)], middle - first as f32)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::request::WrittenInput;
    use proptest::prelude::*;

    /// A handwritten seven and its label are those of `examples/digits`.
    const JPEG: &[u8] = include_bytes!("../../../examples/digits/image.jpg");

    fn spec(element: ElementType, shape: &[u32]) -> TensorSpec {
        let shape = shape.iter().map(|&extent| Extent::Fixed(extent)).collect();
        TensorSpec { name: "image".into(), element, shape }
    }

    fn step(mean: &[f32], std: &[f32]) -> ImageStep {
        ImageStep { model: "m".into(), mean: mean.to_vec(), std: std.to_vec() }
    }

    fn tensor(element: ElementType, shape: &[u32]) -> ImageTensor {
        ImageTensor::of(&step(&[0.0], &[1.0]), &[spec(element, shape)]).unwrap()
    }

    /// What a request with such an input has beside its image, and the image.
    fn taken(
        datatype: &str,
        shape: &[u32],
        bytes: &[u8],
    ) -> Result<(Option<Bytes>, String, Vec<u32>), String> {
        let (name, datatype) = (String::from("image"), datatype.to_owned());
        let source = Some(Source::Binary(bytes.len()));
        let input = WrittenInput { name, datatype, shape: shape.to_vec(), source };
        let mut written = Written {
            id: None,
            timeout_us: None,
            is_sequence: false,
            is_binary: true,
            inputs: vec![input],
            outputs: Vec::new(),
        };
        let mut binary = Bytes::copy_from_slice(bytes);
        let jpeg = take_from(&mut written, &mut binary, &[spec(ElementType::F32, &[3, 4, 5])])?;
        let WrittenInput { datatype, shape, source, .. } = written.inputs.remove(0);
        let rest = if jpeg.is_some() { 4 * 60 } else { bytes.len() };
        assert_eq!(source, Some(Source::Binary(rest)));
        Ok((jpeg, datatype, shape))
    }

    #[test]
    fn one_element_of_bytes_is_an_image_and_then_the_request_says_what_the_model_takes() {
        let element = [&3u32.to_le_bytes()[..], b"abc"].concat();
        for shape in [&[1][..], &[1, 1], &[]] {
            let (jpeg, datatype, shape) = taken("BYTES", shape, &element).unwrap();
            assert_eq!((jpeg.as_deref(), &datatype[..]), (Some(&b"abc"[..]), "FP32"));
            assert_eq!(shape, [1, 3, 4, 5]);
        }
        let other = taken("FP32", &[1, 7], &element).unwrap();
        assert_eq!(other, (None, "FP32".into(), vec![1, 7]), "it is as it was");
    }

    #[test]
    fn what_is_not_one_element_is_refused_in_words() {
        let element = [&3u32.to_le_bytes()[..], b"abc"].concat();
        for shape in [&[2][..], &[1, 2], &[0]] {
            let words = taken("BYTES", shape, &element).unwrap_err();
            assert!(words.contains("send one in a request"), "{words}");
        }
        for cut in [&element[..6], &element[..3], &[], &[&element[..], b"d"].concat()] {
            let words = taken("BYTES", &[1], cut).unwrap_err();
            assert!(words.contains("no element of BYTES"), "{words}");
        }
    }

    #[test]
    fn an_image_becomes_the_tensor_in_both_orders_and_types() {
        let mut floats = vec![0; 4 * 64];
        tensor(ElementType::F32, &[1, 8, 8]).write(JPEG, &mut floats).unwrap();
        let floats: Vec<f32> = floats
            .chunks_exact(4)
            .map(|four| f32::from_le_bytes(four.try_into().unwrap()))
            .collect();
        assert!(floats.iter().all(|value| (0.0..=1.0).contains(value)));
        assert!(floats.iter().any(|&value| value > 0.5) && floats.iter().any(|&value| value < 0.1));
        let (mut first, mut last) = (vec![0; 192], vec![0; 192]);
        tensor(ElementType::U8, &[3, 8, 8]).write(JPEG, &mut first).unwrap();
        tensor(ElementType::U8, &[8, 8, 3]).write(JPEG, &mut last).unwrap();
        for at in 0..64 {
            let pixel = [first[at], first[64 + at], first[128 + at]];
            assert_eq!(pixel, last[3 * at..3 * at + 3]);
            assert!((f32::from(pixel[0]) / 255.0 - floats[at]).abs() < 0.02, "grey");
        }
    }

    #[test]
    fn a_value_between_two_whole_numbers_becomes_the_nearer() {
        let (whole, mut out) = (tensor(ElementType::U8, &[1, 1, 4]), [0; 4]);
        for (at, value) in [0.4, 0.6, 149.5, 254.9].into_iter().enumerate() {
            whole.put(&mut out, at, 0, value);
        }
        assert_eq!(out, [0, 1, 150, 255]);
    }

    #[test]
    fn mean_and_deviation_are_taken_off_by_channel() {
        let plain = tensor(ElementType::F32, &[3, 4, 4]);
        let scaled = step(&[0.5, 0.25, 0.0], &[0.5, 1.0, 2.0]);
        let scaled = ImageTensor::of(&scaled, &[spec(ElementType::F32, &[3, 4, 4])]).unwrap();
        let (mut before, mut after) = (vec![0; 192], vec![0; 192]);
        plain.write(JPEG, &mut before).unwrap();
        scaled.write(JPEG, &mut after).unwrap();
        let value =
            |of: &[u8], at: usize| f32::from_le_bytes(of[4 * at..4 * at + 4].try_into().unwrap());
        for (channel, (mean, std)) in [(0.5, 0.5), (0.25, 1.0), (0.0, 2.0)].into_iter().enumerate()
        {
            let at = 16 * channel + 5;
            assert!((value(&after, at) - (value(&before, at) - mean) / std).abs() < 1e-6);
        }
    }

    /// Three columns and two rows of pixels of two channels.
    #[test]
    fn a_place_between_pixels_has_a_value_between_theirs() {
        let image =
            Pixels { bytes: (0..12).map(|at| at * 10).collect(), width: 3, height: 2, channels: 2 };
        for (row, column, channel) in [(0, 0, 0), (0, 2, 1), (1, 0, 0), (1, 1, 1), (1, 2, 0)] {
            let at = (row * 3 + column) * 2 + channel;
            let place = image.between((row, 2), (column, 3));
            assert_eq!(image.value(&place, channel), at as f32 * 10.0, "{row} {column} {channel}");
        }
        // The middle of all: half-way from the first row to the second, in the column between.
        let middle = image.between((0, 1), (0, 1));
        assert_eq!([0, 1].map(|channel| image.value(&middle, channel)), [50.0, 60.0]);
        // A quarter of the way to the right of the first pixel.
        let place = Between { rows: [0, 1], columns: [0, 1], down: 0.0, right: 0.25 };
        assert_eq!(image.value(&place, 0), 5.0);
    }

    #[test]
    fn the_pixels_around_a_place_are_in_the_image() {
        assert_eq!(around(0, 8, 8), ([0, 1], 0.0));
        assert_eq!(around(7, 8, 8).0, [7, 7]);
        assert_eq!(around(0, 1, 2), ([0, 1], 0.5));
        assert_eq!(around(3, 4, 1), ([0, 0], 0.0));
    }

    #[test]
    fn inputs_that_are_no_images_are_refused_in_words() {
        let refused = |shape: &[u32], element| {
            ImageTensor::of(&step(&[0.0], &[1.0]), &[spec(element, shape)])
        };
        assert!(refused(&[2, 8, 8], ElementType::F32).unwrap_err().contains("1 or 3 channels"));
        assert!(refused(&[64], ElementType::F32).is_err());
        assert!(refused(&[3, 8, 8], ElementType::I64).is_err());
        let uneven = step(&[0.0, 1.0], &[1.0]);
        assert!(ImageTensor::of(&uneven, &[spec(ElementType::F32, &[3, 8, 8])]).is_err());
        assert!(ImageTensor::of(&step(&[0.0], &[1.0]), &[]).is_err());
    }

    proptest! {
        #[test]
        fn anything_that_is_sent_is_an_image_or_refused(at in 0..JPEG.len(), byte: u8, cut in 0..JPEG.len()) {
            let mut broken = JPEG.to_vec();
            broken[at] = byte;
            let mut out = vec![0; 4 * 64];
            let tensor = tensor(ElementType::F32, &[1, 8, 8]);
            let _ = tensor.write(&broken, &mut out);
            let _ = tensor.write(&broken[..cut], &mut out);
        }
    }
}
