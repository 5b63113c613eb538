//! Sources that are compressed, or streams, and the recognition of sources.

use super::tar_forms::scan_bytes;
use crate::tarball::Tarball;
use pagefold_image_build::BuildError;
use pagefold_image_build::source::spool::{Compression, Spooled, spool, unnamed_file};
use pagefold_image_build::source::tar::TarOptions;
use pagefold_image_build::source::{BEGINNING_BYTES, SourceKind};
use std::io::{Read, Seek, Write};
use std::ops::ControlFlow;
use std::path::Path;

fn compressed(compression: Compression, bytes: &[u8]) -> Vec<u8> {
    match compression {
        Compression::Gzip => {
            let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
            encoder.write_all(bytes).unwrap();
            encoder.finish().unwrap()
        }
        Compression::Zstd => zstd::encode_all(bytes, 1).unwrap(),
        Compression::Xz => {
            let mut encoder = liblzma::write::XzEncoder::new(Vec::new(), 0);
            encoder.write_all(bytes).unwrap();
            encoder.finish().unwrap()
        }
    }
}

fn spooled(input: &[u8]) -> Result<Vec<u8>, BuildError> {
    spooled_with_note(input).map(|(bytes, _)| bytes)
}

fn spooled_with_note(input: &[u8]) -> Result<(Vec<u8>, Option<String>), BuildError> {
    let directory = tempfile::tempdir().unwrap();
    let file = unnamed_file(directory.path()).unwrap();
    let path = Path::new("a.tar.x");
    let Spooled { mut file, note } = spool(input, path, file, None, &mut |_| ControlFlow::Continue(()))?;
    assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 0);
    let mut bytes = Vec::new();
    file.rewind().unwrap();
    file.read_to_end(&mut bytes).unwrap();
    Ok((bytes, note))
}

const ALL: [Compression; 3] = [Compression::Gzip, Compression::Zstd, Compression::Xz];

#[test]
fn compressed_streams_become_the_archive() {
    let data: Vec<u8> = (0..600_000u32).map(|i| (i.wrapping_mul(i) >> 7) as u8).collect();
    let archive = Tarball::default().file("f", &data).end();
    assert!(spooled(&archive).unwrap() == archive && spooled(b"").unwrap().is_empty());
    for compression in ALL {
        let small = compressed(compression, &archive);
        assert_eq!(Compression::of(&small), Some(compression));
        assert!(spooled(&small).unwrap() == archive, "{compression:?}");
        // Such files may be written one behind the other.
        let (first, second) = archive.split_at(300_000);
        let two = [compressed(compression, first), compressed(compression, second)].concat();
        assert!(spooled(&two).unwrap() == archive, "{compression:?}");
    }
}

#[test]
fn zeroes_after_compressed_streams_are_passed_over_and_other_bytes_are_noted() {
    let archive = Tarball::default().file("f", &vec![7; 100_000]).end();
    let (first, second) = archive.split_at(50_000);
    for (compression, name) in ALL.into_iter().zip(["gzip member", "Zstandard frame", "xz stream"]) {
        let whole = compressed(compression, &archive);
        for count in [1, 4, 512, 300_000] {
            let zeroes = vec![0; count];
            let after = [&whole[..], &zeroes].concat();
            assert_eq!(
                spooled_with_note(&after).unwrap(),
                (archive.clone(), None),
                "{compression:?} {count}"
            );
            let [first, second] = [first, second].map(|part| compressed(compression, part));
            let between = [&first[..], &zeroes, &second].concat();
            assert_eq!(
                spooled_with_note(&between).unwrap(),
                (archive.clone(), None),
                "{compression:?} {count}"
            );
        }
        let signed = [&whole[..], b"\0signature"].concat();
        let (bytes, note) = spooled_with_note(&signed).unwrap();
        let at = whole.len() + 1;
        let wanted = format!(
            "'a.tar.x' has 9 bytes that are no {name} after its end, from byte {at} on: they are not used"
        );
        assert_eq!((bytes, note), (archive.clone(), Some(wanted)));
        // The beginning of a further stream is not something else.
        let cut = [&whole[..], &whole[..whole.len() - 5]].concat();
        assert!(matches!(spooled(&cut), Err(BuildError::CompressedSource { .. })), "{compression:?}");
    }
}

#[test]
fn damaged_streams_are_errors_with_the_name_of_the_file() {
    let archive = Tarball::default().file("f", &vec![7; 100_000]).end();
    for compression in ALL {
        let small = compressed(compression, &archive);
        let mut damaged = small.clone();
        let middle = damaged.len() / 2;
        damaged[middle] ^= 0xff;
        for bytes in [&small[..small.len() - 5], &small[..8], &damaged] {
            let message = spooled(bytes).unwrap_err().to_string();
            let wanted = "'a.tar.x' is damaged, or cut off; get it again (";
            assert!(message.starts_with(wanted), "{compression:?}: {message}");
        }
    }
    let message = spooled(b"BZh91AY&SY").unwrap_err().to_string();
    assert!(message.contains("needs bzip2 to be decompressed; pipe the result"), "{message}");
}

#[test]
fn a_stream_can_be_interrupted() {
    let directory = tempfile::tempdir().unwrap();
    let file = unnamed_file(directory.path()).unwrap();
    let endless = std::io::repeat(0);
    let mut done = 0;
    let ended = spool(endless, Path::new("-"), file, None, &mut |bytes| {
        done += bytes.len();
        if done > 1 << 20 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    });
    assert!(matches!(ended, Err(BuildError::Interrupted)));
}

#[test]
fn sources_are_recognized_by_their_contents() {
    let of = |bytes: &[u8]| SourceKind::of(&bytes[..bytes.len().min(BEGINNING_BYTES)], Path::new("x"));
    let archive = Tarball::default().file("f", &[0; 2000]).end();
    assert_eq!(of(&archive).unwrap(), SourceKind::Tar);
    assert_eq!(of(&Tarball::default().end()).unwrap(), SourceKind::Tar);
    assert_eq!(scan_bytes(&Tarball::default().end(), &TarOptions::default()).unwrap().tree.len(), 1);
    for compression in ALL {
        assert_eq!(of(&compressed(compression, &archive)).unwrap(), SourceKind::Compressed(compression));
    }
    let mut image = vec![0; 4096];
    image[1024..1028].copy_from_slice(&[0xe2, 0xe1, 0xf5, 0xe0]);
    assert_eq!(of(&image).unwrap(), SourceKind::Image);
    for other in [&b""[..], b"#!/bin/sh\n", &[0; 600]] {
        let message = of(other).unwrap_err().to_string();
        assert!(message.starts_with("'x' cannot be read: it is no tar archive"), "{message}");
    }
}

#[test]
fn a_stream_that_needs_more_memory_than_allowed_is_refused() {
    let mut compressed = Vec::new();
    let options = liblzma::stream::LzmaOptions::new_preset(9).unwrap();
    let mut filters = liblzma::stream::Filters::new();
    filters.lzma2(&options);
    let stream =
        liblzma::stream::Stream::new_stream_encoder(&filters, liblzma::stream::Check::Crc32).unwrap();
    let mut encoder = liblzma::read::XzEncoder::new_stream(&[0; 10_000][..], stream);
    encoder.read_to_end(&mut compressed).unwrap();
    let spooled = |memory_bytes| {
        let file = tempfile::tempfile().unwrap();
        spool(&compressed[..], Path::new("-"), file, memory_bytes, &mut |_| ControlFlow::Continue(()))
    };
    // Level 9 has a dictionary of 64 MiB.
    assert!(spooled(None).is_ok() && spooled(Some(96 << 20)).is_ok());
    assert!(matches!(spooled(Some(32 << 20)), Err(BuildError::Source { .. })));
}
