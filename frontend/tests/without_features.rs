//! A client that was built without etcd and TLS says so when it is asked for them:
//! `cargo test -p baton-client --no-default-features --test without_features`.
#![cfg(not(any(feature = "etcd", feature = "tls")))]

use baton_client::{Client, ClientConfig, ConnectError, EtcdSpec, SchedulerLocator, TlsSpec};

#[test]
fn tls_is_refused_with_the_feature_that_is_missing() {
    let tls = TlsSpec::new("ca.pem".into(), "own.pem".into(), "own.key".into());
    let error = Client::connect(ClientConfig::new("127.0.0.1:1".parse().unwrap()).tls(tls));
    let error = error.unwrap_err();
    assert!(matches!(error, ConnectError::Credentials(_)), "{error:?}");
    assert!(error.to_string().contains("build baton-client with its feature `tls`"), "{error}");
}

#[test]
fn etcd_is_refused_with_the_feature_that_is_missing() {
    let endpoints = vec!["http://127.0.0.1:1".to_owned()];
    let etcd = EtcdSpec { endpoints, prefix: "/baton/x".into(), lease_ttl_s: 2, tls: None };
    let error = SchedulerLocator::via_etcd(&etcd).unwrap_err().to_string();
    assert!(error.contains("build baton-client with its feature `etcd`"), "{error}");
}
