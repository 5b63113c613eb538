//! Reads every file of an image and prints what it cost: `readall image [memory_bytes]`.
#![allow(clippy::unwrap_used, reason = "an example")]
use pagefold_image::*;
fn walk(node: &Node, buf: &mut [u8], total: &mut u64) {
    for entry in node.entries().unwrap() {
        let entry = entry.unwrap();
        let child = node.image().node(entry.nid).unwrap();
        match child.kind() {
            pagefold_image::read::FileKind::Directory => walk(&child, buf, total),
            pagefold_image::read::FileKind::Regular => {
                let mut at = 0;
                while let n @ 1.. = child.read_at(at, buf).unwrap() {
                    at += n as u64;
                    *total += n as u64;
                }
            }
            _ => {}
        }
    }
}
fn main() {
    let args: Vec<String> = std::env::args().collect();
    let memory_bytes = args.get(2).map_or(64 << 20, |s| s.parse().unwrap());
    let ahead = if args.get(3).is_some() { ReadAhead::Off } else { ReadAhead::BestEffort };
    let image = Image::open_file(
        args[1].as_ref(),
        Options { memory_bytes, read_ahead: ahead, keep_asked: false, ..Options::default() },
    )
    .unwrap();
    let (mut buf, mut total) = (vec![0; 1 << 20], 0);
    let begun = std::time::Instant::now();
    walk(&image.root().unwrap(), &mut buf, &mut total);
    println!("{total} bytes in {:?}\n{:#?}", begun.elapsed(), image.stats());
}
