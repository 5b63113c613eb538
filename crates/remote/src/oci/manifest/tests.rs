//! Manifests as registries and build tools write them, and others.

use super::*;
use serde_json::{Value, json};

fn digest(n: u8) -> String {
    format!("sha256:{}", format!("{n:02x}").repeat(32))
}

fn layer(media_type: &str, n: u8) -> Value {
    json!({"mediaType": media_type, "digest": digest(n), "size": 4096})
}

fn image(layers: Vec<Value>) -> Value {
    json!({"schemaVersion": 2, "mediaType": "application/vnd.oci.image.manifest.v1+json", "layers": layers})
}

fn entry(n: u8, platform: Option<&str>) -> Value {
    let mut entry = layer("application/vnd.oci.image.manifest.v1+json", n);
    if let Some(platform) = platform {
        let platform: Platform = platform.parse().unwrap();
        entry["platform"] = serde_json::to_value(platform).unwrap();
    }
    entry
}

fn index(entries: Vec<Value>) -> Value {
    json!({"schemaVersion": 2, "manifests": entries})
}

fn parse(value: &Value) -> Result<Manifest, ManifestError> {
    Manifest::parse(value.to_string().as_bytes(), None)
}

#[test]
fn the_erofs_layer_is_the_image_or_the_only_blob_of_an_artifact() {
    let found = |layers: Vec<Value>| parse(&image(layers)).unwrap().layer().map(|layer| layer.image.digest);
    let tar = || layer("application/vnd.oci.image.layer.v1.tar+gzip", 9);
    assert_eq!(found(vec![tar(), layer(EROFS_LAYER, 1)]), Ok(digest(1)));
    assert_eq!(found(vec![layer("application/octet-stream", 2)]), Ok(digest(2)));
    assert_eq!(found(vec![layer("application/x-erofs", 2), layer(TREE_LAYER, 3)]), Ok(digest(2)));
    let refused = |layers: Vec<Value>| found(layers).unwrap_err().to_string();
    assert!(refused(vec![tar()]).contains("layer.v1.tar+gzip"));
    assert!(refused(vec![layer(&format!("{EROFS_LAYER}+zstd"), 1)]).contains("no layer of the manifest is"));
    for suffix in ["+zstd", "+gzip"] {
        let compressed = || layer(&format!("{EROFS_LAYER}{suffix}"), 1);
        for layers in [vec![compressed()], vec![tar(), compressed(), layer(TREE_LAYER, 2)]] {
            assert!(refused(layers).contains("push it without that compression"));
        }
        // One that can be read is enough.
        assert_eq!(found(vec![compressed(), layer(EROFS_LAYER, 3)]), Ok(digest(3)));
    }
    assert!(refused(vec![layer("a", 1), layer("b", 2)]).contains("there are: a, b"));
    assert!(refused(vec![layer(EROFS_LAYER, 1), layer(EROFS_LAYER, 2)]).contains("2 layers of EROFS"));
    assert!(refused(vec![]).contains("no layers"));
    let mut wrong = layer(EROFS_LAYER, 1);
    wrong["digest"] = json!("sha256:../../x");
    assert!(refused(vec![wrong.clone()]).contains("no digest of SHA-256"));
    wrong["digest"] = json!(digest(1));
    wrong["size"] = json!(u64::MAX);
    assert!(refused(vec![wrong]).contains("out of range"));
}

#[test]
fn a_tree_is_found_if_the_layer_has_a_digest() {
    let mut erofs = layer(EROFS_LAYER, 1);
    let found = |erofs: &Value, trees: u8| {
        let trees = (0..trees).map(|n| layer(TREE_LAYER, 10 + n));
        parse(&image([erofs.clone()].into_iter().chain(trees).collect())).unwrap().layer()
    };
    assert_eq!(found(&erofs, 1).unwrap().tree, None);
    erofs["annotations"] = json!({DIGEST_ANNOTATION: "sha256:aa", SALT_ANNOTATION: "00ff"});
    assert_eq!(found(&erofs, 0).unwrap().tree, None);
    let tree = found(&erofs, 1).unwrap().tree.unwrap();
    assert_eq!(
        (tree.blob.digest, tree.digest.as_str(), tree.salt.as_str()),
        (digest(10), "sha256:aa", "00ff")
    );
    assert!(found(&erofs, 2).unwrap_err().to_string().contains("several Merkle trees"));
}

#[test]
fn platforms_are_chosen_from_an_index() {
    let all = [Some("linux/arm64/v8"), Some("linux/amd64"), Some("linux/arm/v7"), Some("unknown/unknown")];
    let manifest = parse(&index(all.iter().zip(1..).map(|(p, n)| entry(n, *p)).collect())).unwrap();
    let chosen = |text: &str| {
        let platform = text.parse().unwrap();
        manifest.for_platform(&platform).map(|entry| entry.digest.clone()).map_err(|e| e.to_string())
    };
    assert_eq!(chosen("linux/amd64"), Ok(digest(2)));
    assert_eq!(chosen("linux/arm64"), Ok(digest(1)));
    assert_eq!(chosen("linux/arm64/v8"), Ok(digest(1)));
    assert_eq!(chosen("linux/arm"), Ok(digest(3)));
    let error = chosen("linux/arm/v6").unwrap_err();
    assert!(error.contains("linux/arm/v6") && error.contains("linux/arm64/v8, linux/amd64"), "{error}");
    let only = parse(&index(vec![entry(7, None)])).unwrap();
    assert_eq!(only.for_platform(&Platform::of_this_machine()).unwrap().digest, digest(7));
    let none = parse(&index(vec![])).unwrap().for_platform(&Platform::of_this_machine()).unwrap_err();
    assert!(none.to_string().ends_with("one of: none"), "{none}");
    for text in ["linux", "linux/", "a/b/c/d", "linux/a b", ""] {
        assert!(text.parse::<Platform>().is_err(), "{text}");
    }
    assert_eq!("linux/arm/v7".parse::<Platform>().unwrap().to_string(), "linux/arm/v7");
}

#[test]
fn texts_that_are_neither_or_both_are_refused() {
    let refused = |value: Value| parse(&value).unwrap_err().to_string();
    assert!(refused(json!({"schemaVersion": 1, "layers": []})).contains("schemaVersion"));
    assert!(refused(json!({"schemaVersion": 2})).contains("neither"));
    assert!(
        refused(json!({"schemaVersion": 2, "layers": [], "manifests": []})).contains("layers and manifests")
    );
    let index_type = "application/vnd.oci.image.index.v1+json";
    assert!(
        refused(json!({"schemaVersion": 2, "mediaType": index_type, "layers": []})).contains("other kind")
    );
    let bytes = image(vec![]).to_string();
    assert!(Manifest::parse(bytes.as_bytes(), Some(&format!("{index_type}; charset=utf-8"))).is_err());
    assert!(Manifest::parse(bytes.as_bytes(), Some("text/plain")).is_ok());
    let many = vec![layer(EROFS_LAYER, 1); MAX_ENTRIES + 1];
    assert!(refused(image(many)).contains("too many"));
    // Values that are skipped may be deep, because skipping does not recurse; those that are read are not deep.
    let deep = "[".repeat(1_000_000) + &"]".repeat(1_000_000);
    let manifest = |layers: &str, more: &str| {
        let text = format!("{{\"schemaVersion\":2,\"layers\":{layers},\"x\":{more}}}");
        Manifest::parse(text.as_bytes(), None)
    };
    assert!(manifest("[]", &deep).is_ok() && manifest(&deep, "1").is_err());
    assert!(Manifest::parse(&vec![b' '; MAX_MANIFEST_BYTES + 1], None).is_err());
    assert!(Manifest::parse(b"\xff", None).is_err());
}

#[test]
fn features_of_a_platform_choose_between_archives_and_images() {
    let all = ["linux/amd64", "linux(+erofs)/amd64", "linux(+other)/arm64"];
    let manifest = parse(&index(all.iter().zip(1..).map(|(p, n)| entry(n, Some(p))).collect())).unwrap();
    let chosen = |platform: &Platform| manifest.for_platform(platform).map(|entry| entry.digest.clone()).ok();
    let of = |text: &str| text.parse::<Platform>().unwrap();
    assert_eq!(chosen(&of("linux/amd64")), Some(digest(2)));
    assert_eq!(chosen(&of("linux(+erofs)/amd64")), Some(digest(2)));
    assert_eq!(chosen(&of("linux/amd64").preferring_archives()), Some(digest(1)));
    assert_eq!(chosen(&of("linux(+erofs)/amd64").preferring_archives()), Some(digest(2)));
    assert_eq!(chosen(&of("linux(+erofs+other)/amd64")), None);
    // A feature that this machine may not have is for those who ask for it.
    assert_eq!(chosen(&of("linux/arm64")), None);
    assert_eq!(chosen(&of("linux(+other)/arm64")), Some(digest(3)));
    for text in ["linux(+erofs+other)/arm64/v8", "linux/arm64"] {
        assert_eq!(of(text).to_string(), text);
    }
    for text in ["linux(+)/amd64", "linux(+a/amd64", "linux(a)/amd64", "(+a)/amd64", "linux(+a)"] {
        assert!(text.parse::<Platform>().is_err(), "{text}");
    }
}
