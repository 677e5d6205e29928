//! Catalogues that contradict themselves.

use std::net::{IpAddr, Ipv4Addr};

use baton_membership::{Catalogue, MembershipError};
use baton_rdma::wire::{
    Message, ModelDesc, ModelTable, SubclusterDesc, TensorDesc, ThreadDesc, VariantDesc, WireAddr,
};
use baton_topo::signature::{ElementType, Extent, TENSORS_MAX, TensorSpec};
use baton_types::{ACCURACY_MAX, VARIANTS_MAX};

const HERE: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

fn take(catalogue: &mut Catalogue, message: &Message<'_>) -> Result<(), MembershipError> {
    assert!(catalogue.take_in(message, HERE)?, "it is part of a catalogue");
    Ok(())
}

fn thread(catalogue: &mut Catalogue, number: u32) -> Result<(), MembershipError> {
    let addr = WireAddr::new("0.0.0.0:7701".parse().expect("an address"));
    take(catalogue, &Message::ThreadDesc(&ThreadDesc { thread: number.into(), addr }))
}

fn model(catalogue: &mut Catalogue, id: u32, thread: u32) {
    let desc = ModelDesc {
        model: id.into(),
        thread: thread.into(),
        subcluster: 0.into(),
        batch_max: 8.into(),
        input_bytes: 16.into(),
        output_bytes: 4.into(),
        slo_ns: 1.into(),
    };
    take(catalogue, &Message::ModelDesc(&desc, "toy")).expect("a model");
}

#[test]
fn a_model_thread_has_one_number_and_every_number_one_model_thread() {
    let mut catalogue = Catalogue::default();
    thread(&mut catalogue, 0).unwrap();
    assert!(thread(&mut catalogue, 0).is_err(), "twice");
    assert!(thread(&mut catalogue, 1 << 20).is_err(), "more than any scheduler runs");
}

#[test]
fn a_model_lives_on_a_model_thread_that_is_there() {
    let mut catalogue = Catalogue::default();
    model(&mut catalogue, 3, 1);
    assert!(catalogue.take_models(1).is_err());
    model(&mut catalogue, 3, 1);
    let described: Vec<_> = catalogue.models().iter().map(|m| (m.id(), &*m.name)).collect();
    assert_eq!(described, [(3, "toy")]);
    assert_eq!(catalogue.take_models(2).unwrap().len(), 1);
    assert!(catalogue.models().is_empty(), "taken");
}

#[test]
fn a_model_that_is_removed_again_is_not_taken() {
    let mut catalogue = Catalogue::default();
    model(&mut catalogue, 3, 0);
    assert!(catalogue.remove_model(3) && !catalogue.remove_model(3));
    assert!(catalogue.take_models(1).unwrap().is_empty());
}

#[test]
fn tensors_and_tables_belong_to_the_model_before_them() {
    let spec =
        TensorSpec { name: "x".into(), element: ElementType::F32, shape: vec![Extent::Fixed(4)] };
    let mut catalogue = Catalogue::default();
    let tensor = TensorDesc::new(3, false, &spec);
    let table = ModelTable { model: 3.into() };
    assert!(take(&mut catalogue, &Message::TensorDesc(&tensor, "x")).is_err());
    assert!(take(&mut catalogue, &Message::ModelTable(&table, "name = \"toy\"")).is_err());
    model(&mut catalogue, 3, 0);
    take(&mut catalogue, &Message::TensorDesc(&tensor, "x")).unwrap();
    take(&mut catalogue, &Message::ModelTable(&table, "name = \"toy\"")).unwrap();
    let neither = TensorDesc { side: 2, ..tensor };
    assert!(take(&mut catalogue, &Message::TensorDesc(&neither, "x")).is_err());
    let described = catalogue.take_models(1).unwrap().pop().unwrap();
    assert_eq!(described.tensors[0], [spec]);
    assert_eq!(described.table.as_deref(), Some("name = \"toy\""));
}

#[test]
fn a_row_has_as_many_tensors_as_it_may() {
    let spec = TensorSpec { name: "x".into(), element: ElementType::F32, shape: Vec::new() };
    let mut catalogue = Catalogue::default();
    model(&mut catalogue, 3, 0);
    let tensor = TensorDesc::new(3, true, &spec);
    let mut tell = || take(&mut catalogue, &Message::TensorDesc(&tensor, "x"));
    (0..TENSORS_MAX).for_each(|_| tell().unwrap());
    assert!(tell().is_err(), "one more");
}

/// The model before them has as many as it may, each more accurate than the one before.
#[test]
fn variants_rise_in_accuracy_and_are_as_many_as_they_may() {
    let mut catalogue = Catalogue::default();
    let tell = |catalogue: &mut Catalogue, accuracy: u32| {
        let desc = VariantDesc { model: 3.into(), accuracy: accuracy.into() };
        take(catalogue, &Message::VariantDesc(&desc, "v")).is_ok()
    };
    assert!(!tell(&mut catalogue, 1), "of no model");
    model(&mut catalogue, 3, 0);
    let mut told = |accuracy| tell(&mut catalogue, accuracy);
    assert!(told(70_000) && !told(70_000) && !told(69_999), "it is no more accurate");
    assert!(told(80_000) && !told(75_000), "it is more accurate than the first alone");
    assert!(!told(ACCURACY_MAX + 1) && told(ACCURACY_MAX), "more than all answers are right");
    let mut many = Catalogue::default();
    model(&mut many, 3, 0);
    assert_eq!((0..40).filter(|&accuracy| tell(&mut many, accuracy)).count(), VARIANTS_MAX);
}

#[test]
fn a_sub_cluster_is_found_by_its_name_and_by_its_number() {
    let mut catalogue = Catalogue::default();
    let desc = SubclusterDesc { subcluster: 7.into() };
    take(&mut catalogue, &Message::SubclusterDesc(&desc, "west")).unwrap();
    assert_eq!((catalogue.subcluster("west"), catalogue.subcluster("east")), (Some(7), None));
    assert_eq!(catalogue.subcluster_name(7), Some("west"));
    assert_eq!(catalogue.subcluster_name(0), None);
}
