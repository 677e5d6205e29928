//! Files of models on servers lie elsewhere once they were pulled.
mod checking;

use std::path::Path;

use baton_topo::{Sha256, VariantSpec, pulled_file};
use checking::{check, lines, model_with};

#[test]
fn files_of_variants_lie_where_they_were_pulled_to() {
    let cluster =
        check(&model_with("")).cluster.unwrap_or_else(|found| panic!("{:?}", lines(&found)));
    let mut model = cluster.models.into_iter().next().expect("its model");
    let (profile, sum) = (model.profile.clone(), Sha256::of(b"a file"));
    let of = |file: &str| VariantSpec {
        name: file.into(),
        accuracy: 1,
        profile: profile.clone(),
        file: Some(file.into()),
        sha256: Some(sum),
    };
    model.variants = vec![of("https://a.example/v.onnx"), of("v.onnx")];
    let folder = Path::new("/pulled");
    let files = model.pulled_into(folder).variants.into_iter().map(|variant| variant.file);
    assert!(files.eq([Some(pulled_file(folder, sum)), Some("v.onnx".into())]));
}
