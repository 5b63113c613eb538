//! The manifest of a saved disk in a bucket, and the names of the objects beside it.

use crate::disk::chain::hex;
use pagefold_saved::CHAIN_FILES_MAX;
use serde::{Deserialize, Serialize};

/// The longest manifest, bytes. One of a whole chain has some 12 KiB.
pub const MANIFEST_BYTES_MAX: u64 = 64 << 10;
/// The version that is written, and the newest that is read.
const VERSION: u32 = 1;
const FORMAT: &str = "pagefold-saved-disk";
/// Digits of an identity.
const ID_DIGITS: usize = 32;
/// The longest name of an object beside a manifest, as an incremental save can name it.
const NAME_BYTES_MAX: usize = 255;

/// A manifest.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Manifest {
    format: String,
    version: u32,
    /// The objects of the chain, the newest first; the last one is a full save.
    pub objects: Vec<Object>,
}

/// An object with a saved disk.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Object {
    /// Its name beside the manifest.
    pub name: String,
    /// Its identity, in hexadecimal.
    pub id: String,
    /// The SHA-256 of all its bytes but the last 128, in hexadecimal.
    pub sha256: String,
    /// Its length.
    pub bytes: u64,
}

impl Manifest {
    /// A manifest of these objects.
    pub fn new(objects: Vec<Object>) -> Self {
        Manifest { format: FORMAT.into(), version: VERSION, objects }
    }

    /// The manifest in these bytes; the error says what is wrong.
    pub fn parse(bytes: &[u8]) -> Result<Self, String> {
        #[derive(Deserialize)]
        struct Beginning {
            format: String,
            version: u32,
        }
        let not_one = |_| "it is neither a saved disk nor the manifest of one".to_string();
        let Beginning { format, version } = serde_json::from_slice(bytes).map_err(not_one)?;
        if format != FORMAT {
            return Err("it is neither a saved disk nor the manifest of one".into());
        }
        if version != VERSION {
            return Err(format!(
                "its manifest has version {version}; this program knows version {VERSION}: use a newer one"
            ));
        }
        let manifest: Manifest =
            serde_json::from_slice(bytes).map_err(|e| format!("its manifest is damaged: {e}"))?;
        if !(1..=CHAIN_FILES_MAX).contains(&manifest.objects.len()) {
            let what = format!("its manifest is damaged: it has not 1 to {CHAIN_FILES_MAX} objects");
            return Err(what);
        }
        match manifest.objects.iter().find(|object| !object.is_valid()) {
            Some(object) => {
                Err(format!("its manifest is damaged: the object '{}'", object.name.escape_debug()))
            }
            None => Ok(manifest),
        }
    }

    /// Its bytes.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = serde_json::to_vec_pretty(self).unwrap_or_default();
        bytes.push(b'\n');
        bytes
    }
}

impl Object {
    fn is_valid(&self) -> bool {
        let Object { name, id, sha256, .. } = self;
        let is_name = (1..=NAME_BYTES_MAX).contains(&name.len())
            && !name.contains('/')
            && !name.bytes().any(|b| b.is_ascii_control())
            && name != "."
            && name != "..";
        is_name && id.len() == ID_DIGITS && is_hex(id) && sha256.len() == 64 && is_hex(sha256)
    }

    /// The identity as bytes.
    pub fn id_bytes(&self) -> [u8; 16] {
        bytes_of(&self.id)
    }

    /// The digest as bytes.
    pub fn sha256_bytes(&self) -> [u8; 32] {
        bytes_of(&self.sha256)
    }
}

/// The bytes of as many pairs of digits.
fn bytes_of<const N: usize>(digits: &str) -> [u8; N] {
    let mut bytes = [0; N];
    for (byte, at) in bytes.iter_mut().zip((0..).step_by(2)) {
        *byte = digits.get(at..at + 2).and_then(|pair| u8::from_str_radix(pair, 16).ok()).unwrap_or_default();
    }
    bytes
}

fn is_hex(text: &str) -> bool {
    text.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'))
}

/// The key of a manifest: the folder of its objects, with the slash at its end, and the beginning of their names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ManifestKey<'a> {
    /// The folder; empty at the top of the bucket.
    pub folder: &'a str,
    /// The last part of the key.
    pub name: &'a str,
}

impl<'a> ManifestKey<'a> {
    /// Divides a key.
    pub fn of(key: &'a str) -> Self {
        let (folder, name) = key.split_at(key.rfind('/').map_or(0, |slash| slash + 1));
        ManifestKey { folder, name }
    }

    /// The name of the object with this identity.
    pub fn object_name(self, id: [u8; 16]) -> String {
        format!("{}.{}", self.name, hex(&id))
    }

    /// Whether the names of objects are short enough for an incremental save to name.
    pub fn fits(self) -> bool {
        self.name.len() + 1 + ID_DIGITS <= NAME_BYTES_MAX
    }

    /// Whether a save to this key gives objects such names.
    pub fn is_object_name(self, name: &str) -> bool {
        let id = name.strip_prefix(self.name).and_then(|rest| rest.strip_prefix('.'));
        id.is_some_and(|id| id.len() == ID_DIGITS && is_hex(id))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn object(name: &str) -> Object {
        Object { name: name.into(), id: "0a".repeat(16), sha256: "b1".repeat(32), bytes: 7 }
    }

    #[test]
    fn a_manifest_is_read_as_it_was_written() {
        let manifest = Manifest::new(vec![object("a.1"), object("a.2")]);
        assert_eq!(Manifest::parse(&manifest.to_bytes()), Ok(manifest.clone()));
        assert_eq!(
            (manifest.objects[0].id_bytes(), manifest.objects[0].sha256_bytes()),
            ([10; 16], [0xb1; 32])
        );
        let all = Manifest::new(vec![object(&"n".repeat(255)); CHAIN_FILES_MAX]);
        assert!((all.to_bytes().len() as u64) < MANIFEST_BYTES_MAX);
        assert!(Manifest::parse(&all.to_bytes()).is_ok());
    }

    #[test]
    fn other_manifests_are_refused() {
        let text = |manifest: &Manifest| String::from_utf8(manifest.to_bytes()).unwrap();
        let good = text(&Manifest::new(vec![object("a")]));
        let wrong = |text: String| Manifest::parse(text.as_bytes()).unwrap_err();
        assert!(wrong(good.replace("\"version\": 1", "\"version\": 2")).contains("newer"));
        assert!(wrong(good.replace(FORMAT, "other")).contains("neither"));
        assert!(wrong("{}".into()).contains("neither") && wrong(String::new()).contains("neither"));
        assert!(wrong(text(&Manifest::new(vec![]))).contains("1 to 32"));
        assert!(wrong(text(&Manifest::new(vec![object("a"); 33]))).contains("1 to 32"));
        for name in ["", ".", "..", "../a", "a/b", "a\n", &"n".repeat(256)] {
            assert!(wrong(text(&Manifest::new(vec![object(name)]))).contains("damaged"), "{name}");
        }
        assert!(wrong(good.replace("0a0a", "0A0a")).contains("damaged"));
        assert!(wrong(good.replace("b1b1b1", "b1b1")).contains("damaged"));
    }

    #[test]
    fn names_beside_a_manifest_have_an_identity() {
        let key = ManifestKey::of("disks/of a/work");
        assert_eq!((key.folder, key.name), ("disks/of a/", "work"));
        assert_eq!(ManifestKey::of("work"), ManifestKey { folder: "", name: "work" });
        let name = key.object_name([0xab; 16]);
        assert!(key.is_object_name(&name) && key.fits());
        for other in ["work", "work.", "work.bak", &name.to_uppercase(), &format!("{name}0"), &name[1..]] {
            assert!(!key.is_object_name(other), "{other}");
        }
        assert!(!ManifestKey { folder: "", name: &"n".repeat(223) }.fits());
    }
}
