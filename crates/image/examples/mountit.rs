//! Mounts an image: `mountit image dir memory [ahead]`.
#![allow(clippy::unwrap_used, reason = "an example")]
use pagefold_image::mount::{Mount, MountOptions};
use pagefold_image::*;
fn main() {
    let args: Vec<String> = std::env::args().collect();
    let read_ahead = match args.get(4).map(String::as_str) {
        Some("off") => ReadAhead::Off,
        Some("wait") => ReadAhead::Waiting,
        _ => ReadAhead::BestEffort,
    };
    let image = Image::open_file(
        args[1].as_ref(),
        Options {
            memory_bytes: args[3].parse().unwrap(),
            read_ahead,
            keep_asked: false,
            ..Options::default()
        },
    )
    .unwrap();
    let threads = args.get(5).map_or(0, |s| s.parse().unwrap());
    let mount =
        Mount::new(image.clone(), args[2].as_ref(), &MountOptions { threads, ..MountOptions::default() })
            .unwrap();
    mount.wait().unwrap();
    println!("{:#?}", image.stats());
}
