//! A simple decoder of extents, for comparing indexes with the contents of files.

use super::Slice;
use super::image::{Image, Inode};
use pagefold_image::read::{Algorithm, Cluster, Extent, Mapping, ZMap};

/// The contents of a compressed inode, decoded extent by extent; `packed` is the packed file.
pub fn contents(image: &Image, inode: &Inode, packed: &[u8]) -> Vec<u8> {
    let bytes = Slice(&image.data);
    let form = inode.form().unwrap();
    let map = ZMap::open(&bytes, &image.context(inode.nid), form, inode.tail_address(), inode.size).unwrap();
    let mut data = Vec::new();
    while (data.len() as u64) < inode.size {
        let extent = map.extent_at(&bytes, data.len() as u64).unwrap();
        assert_eq!(extent.start, data.len() as u64);
        data.extend_from_slice(&decode(image, &extent, packed));
        assert_eq!(extent.end(), data.len() as u64);
    }
    data
}

fn decode(image: &Image, extent: &Extent, packed: &[u8]) -> Vec<u8> {
    let len = extent.len_bytes as usize;
    match extent.mapping {
        Mapping::Hole => vec![0; len],
        Mapping::Plain(at) => image.data[at.offset as usize..][..len].to_vec(),
        Mapping::Interlaced { at, len_bytes } => (extent.start..extent.end())
            .map(|p| image.data[(at.offset + p % u64::from(len_bytes)) as usize])
            .collect(),
        Mapping::Fragment { offset } => packed[offset as usize..][..len].to_vec(),
        Mapping::Compressed(cluster) => decompress(image, &cluster, len),
    }
}

fn decompress(image: &Image, cluster: &Cluster, len: usize) -> Vec<u8> {
    let mut stored = &image.data[cluster.at.offset as usize..][..cluster.len_bytes as usize];
    if cluster.zero_padded {
        let zeroes = stored.iter().take_while(|&&b| b == 0).count();
        assert!(zeroes < 1 << image.block_bits());
        stored = &stored[zeroes..];
    }
    let mut out = vec![0; len];
    match cluster.algorithm {
        Algorithm::Lz4 => return lz4(stored, len, cluster.prefix_only),
        Algorithm::Deflate => {
            let decoded = libdeflater::Decompressor::new().deflate_decompress(stored, &mut out);
            assert_eq!(decoded, Ok(len));
        }
        Algorithm::Zstd => assert_eq!(zstd_safe::decompress(&mut out[..], stored), Ok(len)),
        Algorithm::MicroLzma => panic!("no decoder in this test"),
    }
    out
}

/// Decodes the first `len` bytes of a raw LZ4 block. Without `prefix`, the block must end there.
fn lz4(input: &[u8], len: usize, prefix: bool) -> Vec<u8> {
    let mut input = input.iter().copied();
    let mut out = Vec::with_capacity(len);
    while out.len() < len {
        let token = input.next().unwrap() as usize;
        for _ in 0..length(&mut input, token >> 4) {
            out.push(input.next().unwrap());
        }
        if out.len() >= len {
            break;
        }
        let distance = input.next().unwrap() as usize | (input.next().unwrap() as usize) << 8;
        for _ in 0..length(&mut input, token & 15) + 4 {
            out.push(out[out.len() - distance]);
        }
    }
    assert!(prefix || (out.len() == len && input.next().is_none()), "the stream ends elsewhere");
    out.truncate(len);
    out
}

fn length(input: &mut impl Iterator<Item = u8>, nibble: usize) -> usize {
    let mut length = nibble;
    let mut more = nibble == 15;
    while more {
        let byte = input.next().unwrap();
        length += byte as usize;
        more = byte == 255;
    }
    length
}
