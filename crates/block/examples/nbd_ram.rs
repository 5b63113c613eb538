//! Serves plain memory over NBD until it is killed. Benchmarks compare a compressed device with it as an upper bound.
//!
//!     cargo run --release -p pagefold-block --example nbd_ram -- 1G /run/user/1000/ram.sock
//!     nbdinfo "nbd+unix:///ram?socket=/run/user/1000/ram.sock"

use pagefold_block::RamDevice;
use pagefold_block::nbd::{Export, Limits, Server, UnixSocket, uri};
use std::path::Path;
use std::sync::Arc;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let args: Vec<String> = std::env::args().collect();
    let [_, size, path] = &args[..] else { return Err("usage: nbd_ram SIZE SOCKET".into()) };
    let device = Arc::new(RamDevice::new(pagefold_page::size::parse(size)?));
    let server = Server::new(Export::new("ram", "plain memory", device)?, Limits::default());
    server.serve_unix(UnixSocket::bind(Path::new(path))?)?;
    println!("{}", uri::unix("ram", Path::new(path)));
    loop {
        std::thread::park();
    }
}
