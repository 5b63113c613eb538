//! Finds the streams of the kernel's 842 compressor on the backing of a zram device, and decodes them.
//!
//! `c842_pages content COUNT FILE` writes the pages that the guest writes to its device.
//! `c842_pages scan COUNT BACKING SIZES [FIXTURES N]` looks for their streams on the backing, decodes each, and compares
//! it with what this crate writes; those of pages below N are saved in the folder FIXTURES. SIZES has a line for each
//! page: the length of its stream, 4096 if it is raw. It fails when one is missing. `tests/guest/c842.sh` runs both.

use pagefold_codec::c842::{Workspace, compress, compress_bound, decompress};
use std::path::Path;

#[path = "../tests/support/lzo_kernel_content.rs"]
mod content;

const PAGE: usize = 4096;

type Error = Box<dyn std::error::Error>;

fn main() -> Result<(), Error> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    match args.as_slice() {
        ["content", count, file] => {
            let pages: Vec<u8> =
                (0..count.parse()?).flat_map(|index| content::cluster(index, PAGE)).collect();
            Ok(std::fs::write(file, pages)?)
        }
        ["scan", count, backing, sizes] => scan(count.parse()?, backing, sizes, None),
        ["scan", count, backing, sizes, folder, below] => {
            scan(count.parse()?, backing, sizes, Some((Path::new(folder), below.parse()?)))
        }
        _ => Err("usage: content COUNT FILE | scan COUNT BACKING SIZES [FIXTURES N]".into()),
    }
}

/// Decodes the streams of all pages; saves those of pages below `save.1` in the folder `save.0`.
fn scan(count: usize, backing: &str, sizes: &str, save: Option<(&Path, usize)>) -> Result<(), Error> {
    let backing = std::fs::read(backing)?;
    let sizes = std::fs::read_to_string(sizes)?;
    let sizes = sizes.lines().map(str::parse).collect::<Result<Vec<usize>, _>>()?;
    if sizes.len() != count {
        return Err(format!("{} sizes instead of {count}", sizes.len()).into());
    }
    let (mut found, mut raw, mut equal, mut bytes) = (0, 0, 0, 0);
    for (index, size) in sizes.into_iter().enumerate() {
        let page = content::cluster(index, PAGE);
        let ours = compressed(&page)?;
        if size == PAGE {
            println!("page {index} is raw; here it has {} bytes", ours.len());
            raw += 1;
            continue;
        }
        let mut out = vec![0; PAGE];
        let mut streams = backing.chunks(PAGE).filter_map(|block| block.get(..size));
        let stream = streams.find(|stream| decompress(stream, &mut out) == Ok(PAGE) && out == page);
        let stream =
            stream.ok_or_else(|| format!("no block has the stream of page {index}, {size} bytes"))?;
        if let Some((folder, below)) = save
            && index < below
        {
            std::fs::write(folder.join(format!("{index:04}.842")), stream)?;
        }
        found += 1;
        bytes += size;
        equal += usize::from(ours == stream);
        if ours != stream {
            println!("page {index}: {size} bytes, here {}", ours.len());
        }
    }
    println!("{found} streams of {bytes} bytes decoded, {equal} are equal to ours, {raw} pages are raw");
    Ok(())
}

fn compressed(page: &[u8]) -> Result<Vec<u8>, Error> {
    let mut stream = vec![0; compress_bound(page.len())];
    let len = compress(&mut Workspace::new(), page, &mut stream)?;
    stream.truncate(len);
    Ok(stream)
}
