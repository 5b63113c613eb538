//! Invariant: any text is parsed as labels of SELinux, or refused with a line, and a tree gets the labels.
#![no_main]

use libfuzzer_sys::fuzz_target;
use pagefold_image_build::{FileContexts, Metadata, Tree, XattrChanges};

fuzz_target!(|text: &[u8]| {
    let Ok(contexts) = FileContexts::parse(text) else { return };
    let mut tree = Tree::new(Metadata::default());
    for path in ["a", "etc/passwd", "usr/lib/a.so", "usr/bin/x", "d/\u{e9}"] {
        let _ = tree.add_bytes(path.as_bytes(), *b"");
    }
    let changes = XattrChanges { contexts: Some(contexts), ..XattrChanges::default() };
    // No table of a tree in memory fails.
    assert!(changes.apply(&mut tree).is_ok());
});
