//! Invariant: any answer of a registry is parsed or refused. A layer or a manifest that is chosen has a digest of 64
//! hexadecimal digits, so that it can be a part of a URL, and a text that was accepted is not both a manifest and an index.
//!
//! The first byte chooses what the rest is: a manifest, the header with a challenge, or the name of an image.
#![no_main]

use libfuzzer_sys::fuzz_target;
use pagefold_remote::oci::{Challenge, Manifest, OciReference, Platform};

fn is_digest(text: &str) -> bool {
    text.strip_prefix("sha256:")
        .is_some_and(|hex| hex.len() == 64 && hex.bytes().all(|b| b.is_ascii_hexdigit()))
}

fn manifest(bytes: &[u8]) {
    let Ok(manifest) = Manifest::parse(bytes, None) else { return };
    // The media type of the other kind is refused.
    let kinds = ["application/vnd.oci.image.manifest.v1+json", "application/vnd.oci.image.index.v1+json"];
    let accepted = kinds.map(|kind| Manifest::parse(bytes, Some(kind)).is_ok());
    assert_eq!(accepted, [matches!(manifest, Manifest::Image { .. }), matches!(manifest, Manifest::Index(_))]);
    if let Ok(layer) = manifest.layer() {
        assert!(is_digest(&layer.image.digest));
        assert!(layer.tree.is_none_or(|tree| is_digest(&tree.blob.digest)));
    }
    for platform in ["linux/amd64", "linux/arm64", "linux/arm/v7"] {
        let platform: Platform = platform.parse().expect("a platform");
        if let Ok(entry) = manifest.for_platform(&platform) {
            assert!(is_digest(&entry.digest));
            let is_other =
                |other: &Platform| other.os != "linux" || other.architecture != platform.architecture;
            assert!(!entry.platform.as_ref().is_some_and(is_other));
        }
    }
}

fuzz_target!(|data: &[u8]| {
    let Some((&choice, data)) = data.split_first() else { return };
    let text = String::from_utf8_lossy(data);
    match choice % 3 {
        0 => manifest(data),
        1 => _ = Challenge::parse(&text),
        _ => {
            if let Ok(reference) = OciReference::parse(&text) {
                assert_eq!(OciReference::parse(&reference.to_string()), Ok(reference.clone()));
                assert!(!reference.name.contains("..") && !reference.target.contains('/'));
            }
        }
    }
});
