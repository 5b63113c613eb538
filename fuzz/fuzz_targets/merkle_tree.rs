//! Invariant: a source that is verified by a digest returns the bytes of that digest or fails, whatever its bytes and its
//! Merkle tree are. Nothing fails where both are right. Any text is parsed as a digest or a salt, or refused, and a digest
//! is printed as the text that it was made from.
#![no_main]

use libfuzzer_sys::arbitrary::{Result, Unstructured};
use libfuzzer_sys::fuzz_target;
use pagefold_backing::ByteSource;
use pagefold_fuzz::media::memory;
use pagefold_image::verity::{Digest, Salt, VerifiedSource, measure};
use std::ops::ControlFlow;

/// Longer than the data of one block of hashes, so that there are trees of two levels.
const DATA_BYTES_MAX: u32 = 600_000;

struct Input<'a> {
    data_bytes: u32,
    seed: u8,
    salt: u8,
    /// Positions and values of bytes of the data, then of the tree, that are changed.
    data_changes: Vec<(u32, u8)>,
    tree_changes: Vec<(u32, u8)>,
    /// Bytes by which the tree becomes longer or shorter.
    tree_growth: i16,
    reads: Vec<(u32, u16)>,
    text: &'a str,
}

impl<'a> Input<'a> {
    fn of(bytes: &mut Unstructured<'a>) -> Result<Self> {
        Ok(Input {
            data_bytes: bytes.arbitrary()?,
            seed: bytes.arbitrary()?,
            salt: bytes.arbitrary()?,
            data_changes: bytes.arbitrary()?,
            tree_changes: bytes.arbitrary()?,
            tree_growth: bytes.arbitrary()?,
            reads: bytes.arbitrary()?,
            text: bytes.arbitrary()?,
        })
    }
}

/// Changes bytes; returns whether anything is different.
fn change(bytes: &mut [u8], changes: &[(u32, u8)]) -> bool {
    let before = bytes.to_vec();
    for (position, value) in changes {
        if let Some(index) = (*position as usize).checked_rem(bytes.len()) {
            bytes[index] = *value;
        }
    }
    bytes != before
}

fuzz_target!(|bytes: &[u8]| {
    let Ok(input) = Input::of(&mut Unstructured::new(bytes)) else { return };
    if let Ok(digest) = input.text.parse::<Digest>() {
        assert!(digest.to_string().eq_ignore_ascii_case(input.text));
    }
    let _ = input.text.parse::<Salt>();

    let data: Vec<u8> = (0..input.data_bytes % DATA_BYTES_MAX)
        .map(|i| (i / 7) as u8 ^ (i >> 12) as u8 ^ input.seed)
        .collect();
    let salt: Salt = "ab".repeat(usize::from(input.salt) % 33).parse().unwrap();
    let tree = std::sync::Mutex::new(Vec::new());
    let write = |at: u64, block: &[u8; 4096]| {
        let (mut tree, end) = (tree.lock().unwrap(), at as usize + 4096);
        let len = tree.len().max(end);
        tree.resize(len, 0);
        tree[end - 4096..end].copy_from_slice(block);
        Ok(())
    };
    let descriptor = measure(&*memory(&data), &salt, 1, &write, &mut |_| ControlFlow::Continue(())).unwrap();

    let (mut found, mut found_tree) = (data.clone(), tree.into_inner().unwrap());
    let mut is_changed = change(&mut found, &input.data_changes);
    is_changed |= change(&mut found_tree, &input.tree_changes);
    let tree_bytes = found_tree.len().saturating_add_signed(input.tree_growth.into());
    is_changed |= tree_bytes != found_tree.len();
    found_tree.resize(tree_bytes, 0);

    let opened = VerifiedSource::open(memory(&found), memory(&found_tree), descriptor.digest(), &salt);
    let Ok(verified) = opened else {
        assert!(is_changed);
        return;
    };
    assert_eq!(verified.len_bytes(), data.len() as u64);
    let whole = [(0, u16::MAX)];
    for (offset, len) in input.reads.iter().take(32).chain(&whole) {
        let start = (*offset as usize).checked_rem(data.len()).unwrap_or(0);
        let end = data.len().min(start + usize::from(*len));
        let mut buf = vec![0; end - start];
        match verified.read_at(start as u64, &mut buf) {
            Ok(()) => assert!(buf == data[start..end]),
            Err(_) => assert!(is_changed),
        }
    }
});
