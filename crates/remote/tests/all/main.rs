//! Sources on a server with faults, in one program, because one program builds faster than many.
#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

mod azure;
mod azurite;
mod behaviours;
mod cache;
#[path = "../support/cache_checker.rs"]
mod cache_checker;
mod cache_kill;
mod docker_registry;
mod faults;
mod gcs;
#[path = "../support/guest.rs"]
mod guest;
mod in_order;
mod model;
mod moto;
mod oci;
mod outages;
mod reading;
mod redirects;
#[path = "../support/registry.rs"]
mod registry;
mod s3;
#[path = "../support/s3_store.rs"]
mod s3_store;
#[path = "../support/server.rs"]
mod server;
#[path = "../support/model.rs"]
mod server_model;
mod versions;

use pagefold_backing::{BackingError, ByteSource};
use pagefold_remote::{Options, RemoteError, RemoteSource, Url};
use server::{Object, Server};
use server_model::PATH;
use std::time::Duration;

/// Bytes of a block of the source.
const BLOCK: u64 = 32 << 10;
/// The length of the object: some blocks and a part of one.
const LEN: u64 = 9 * BLOCK + 777;

/// The contents of version `n` of the object.
fn contents(n: u64) -> Vec<u8> {
    (0..LEN).map(|at| ((at + n).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8).collect()
}

/// A server with the object.
fn server() -> Server {
    let server = Server::start();
    server.put(PATH, Object::new(contents(0), "v0"));
    server
}

fn options(timeout_ms: u64) -> Options {
    // Requests of other threads would come between those that a test counts.
    Options { timeout: Duration::from_millis(timeout_ms), ahead_threads: 0, ..Options::default() }
}

fn open_with(server: &Server, options: Options) -> Result<RemoteSource, RemoteError> {
    RemoteSource::open(&Url::parse(&server.url(PATH)).unwrap(), options)
}

fn open(server: &Server) -> RemoteSource {
    open_with(server, options(10_000)).unwrap()
}

/// Reads a range, and checks that the bytes are those of the version that was opened.
fn read(source: &RemoteSource, from: u64, len: u64) -> Result<(), BackingError> {
    let mut buf = vec![0xee; len as usize];
    source.read_at(from, &mut buf)?;
    assert!(buf == contents(0)[from as usize..(from + len) as usize], "wrong bytes at {from}+{len}");
    Ok(())
}

/// Reads seven blocks at once, each by a thread.
fn read_at_once(source: &RemoteSource) {
    std::thread::scope(|scope| {
        let readers: Vec<_> =
            (1..8_u64).map(|block| scope.spawn(move || read(source, block * BLOCK, BLOCK))).collect();
        readers.into_iter().for_each(|reader| reader.join().unwrap().unwrap());
    });
}
