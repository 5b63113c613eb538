//! The names of objects in buckets: `s3://bucket/key`, `az://container/blob` and `gs://bucket/object`.

use crate::encoding::encoded_path;
use std::fmt;

/// The longest key of an object, bytes.
const MAX_KEY_BYTES: usize = 1024;

/// The stores, by the schemes of their names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Store {
    /// `s3://bucket/key`.
    S3,
    /// `az://container/blob`.
    Azure,
    /// `gs://bucket/object`.
    Gcs,
    /// `oci://registry/name:tag`, and `oci+http://` without TLS.
    Oci,
}

impl Store {
    const ALL: [Store; 4] = [Store::S3, Store::Azure, Store::Gcs, Store::Oci];

    /// The store of a name; `None` if it is another URL, or a path.
    pub fn of(name: &str) -> Option<Self> {
        let (scheme, _) = name.split_once("://")?;
        let is_plain_oci = scheme.eq_ignore_ascii_case("oci+http");
        let found = Self::ALL.into_iter().find(|store| store.scheme().eq_ignore_ascii_case(scheme));
        found.or(is_plain_oci.then_some(Store::Oci))
    }

    fn scheme(self) -> &'static str {
        match self {
            Store::S3 => "s3",
            Store::Azure => "az",
            Store::Gcs => "gs",
            Store::Oci => "oci",
        }
    }
}

/// Why a text is no name of an object in a bucket.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum ObjectNameError {
    /// It begins with the scheme of no such store.
    #[error("the name of an object in a bucket begins with s3://, az:// or gs://")]
    Scheme,
    /// Between the scheme and the next slash there is no name of a bucket.
    #[error("{}", bucket_rule(*.0))]
    Bucket(Store),
    /// The name is followed by a shared access signature, which would be a part of all messages.
    #[error(
        "a shared access signature is no part of the name of a blob: set AZURE_STORAGE_SAS_TOKEN to what follows the \
         question mark, and name the blob without it"
    )]
    Signature,
    /// There is no object.
    #[error("{}", key_rule(*.0))]
    Key(Store),
}

fn bucket_rule(store: Store) -> &'static str {
    match store {
        Store::Azure => {
            "az:// is followed by the name of a container: lower-case letters, digits and '-', or $root or $web"
        }
        Store::Gcs => {
            "gs:// is followed by the name of a bucket: lower-case letters, digits, '-', '_' and '.'"
        }
        Store::S3 | Store::Oci => {
            "s3:// is followed by the name of a bucket: letters, digits, '-', '.' and '_'"
        }
    }
}

fn key_rule(store: Store) -> &'static str {
    match store {
        Store::Azure => "the name of the container is followed by '/' and the name of a blob",
        Store::Gcs => "the name of the bucket is followed by '/' and the name of an object",
        Store::S3 | Store::Oci => "the name of the bucket is followed by '/' and the key of an object",
    }
}

/// The name of an object. The key is what follows the bucket, as it is: nothing in it is decoded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ObjectName {
    pub(crate) store: Store,
    pub(crate) bucket: String,
    key: String,
}

impl ObjectName {
    /// Parses `SCHEME://bucket/key`.
    pub fn parse(text: &str) -> Result<Self, ObjectNameError> {
        let store = Store::of(text).ok_or(ObjectNameError::Scheme)?;
        let rest = text.split_once("://").map_or("", |(_, rest)| rest);
        let (bucket, key) = rest.split_once('/').unwrap_or((rest, ""));
        let is_lower = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit();
        let has_dots = bucket.starts_with('.') || bucket.contains("..");
        let (max_bytes, is_bucket) = match store {
            Store::S3 => {
                let is_allowed = |b: u8| b.is_ascii_alphanumeric() || b"-._".contains(&b);
                (255, bucket.bytes().all(is_allowed) && !has_dots)
            }
            Store::Gcs => {
                let is_allowed = |b: u8| is_lower(b) || b"-_.".contains(&b);
                (222, bucket.bytes().all(is_allowed) && !has_dots)
            }
            Store::Azure => {
                let is_word = bucket.bytes().all(|b| is_lower(b) || b == b'-');
                (63, is_word || ["$root", "$web"].contains(&bucket))
            }
            Store::Oci => return Err(ObjectNameError::Scheme),
        };
        match () {
            () if !is_bucket || !(1..=max_bytes).contains(&bucket.len()) => {
                Err(ObjectNameError::Bucket(store))
            }
            () if store == Store::Azure && has_signature(key) => Err(ObjectNameError::Signature),
            () if !(1..=MAX_KEY_BYTES).contains(&key.len()) => Err(ObjectNameError::Key(store)),
            () => Ok(ObjectName { store, bucket: bucket.to_string(), key: key.to_string() }),
        }
    }

    /// The store.
    pub fn store(&self) -> Store {
        self.store
    }

    /// The bucket or container.
    pub fn bucket(&self) -> &str {
        &self.bucket
    }

    /// The key, as it was typed.
    pub fn key(&self) -> &str {
        &self.key
    }

    /// Another object of the bucket; the key has the limits of [`parse`](Self::parse).
    pub fn with_key(&self, key: &str) -> Result<Self, ObjectNameError> {
        let (scheme, bucket) = (self.store.scheme(), &self.bucket);
        Self::parse(&format!("{scheme}://{bucket}/{key}"))
    }

    /// The key as the path of a URL and as signatures need it.
    pub(crate) fn encoded_key(&self) -> String {
        encoded_path(&self.key)
    }

    /// The path of the object in URLs, without a slash at its beginning.
    pub(crate) fn encoded(&self) -> String {
        format!("{}/{}", self.bucket, self.encoded_key())
    }
}

/// Whether a URL with a shared access signature was taken for the name of a blob.
fn has_signature(blob: &str) -> bool {
    blob.split_once('?').is_some_and(|(_, query)| query.to_ascii_lowercase().contains("sig="))
}

impl fmt::Display for ObjectName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}://{}/{}", self.store.scheme(), self.bucket, self.key)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_parsed_and_keys_encoded() {
        for (text, shown, encoded) in [
            (
                "S3://images/a b/é+%41?#.erofs",
                "s3://images/a b/é+%41?#.erofs",
                "images/a%20b/%C3%A9%2B%2541%3F%23.erofs",
            ),
            (
                "AZ://images/a b/é+%41?#.erofs",
                "az://images/a b/é+%41?#.erofs",
                "images/a%20b/%C3%A9%2B%2541%3F%23.erofs",
            ),
            (
                "GS://my_images.example.org/a b/é?#.erofs",
                "gs://my_images.example.org/a b/é?#.erofs",
                "my_images.example.org/a%20b/%C3%A9%3F%23.erofs",
            ),
            ("az://$web/x", "az://$web/x", "$web/x"),
            ("az://images/sig=1?x", "az://images/sig=1?x", "images/sig%3D1%3Fx"),
        ] {
            let name = ObjectName::parse(text).unwrap();
            assert_eq!((name.to_string().as_str(), name.encoded().as_str()), (shown, encoded));
        }
    }

    #[test]
    fn other_names_are_refused() {
        use ObjectNameError::{Bucket, Key, Scheme, Signature};
        for (text, error) in [
            ("http://bucket/key", Scheme),
            ("oci://bucket/key", Scheme),
            ("bucket/key", Scheme),
            ("s3:///key", Bucket(Store::S3)),
            ("s3://me@host/key", Bucket(Store::S3)),
            ("s3://a..b/key", Bucket(Store::S3)),
            ("s3://.a/key", Bucket(Store::S3)),
            ("s3://bucket", Key(Store::S3)),
            ("s3://bucket/", Key(Store::S3)),
            ("az:///x", Bucket(Store::Azure)),
            ("az://Images/x", Bucket(Store::Azure)),
            ("az://me@images/x", Bucket(Store::Azure)),
            ("az://images", Key(Store::Azure)),
            ("az://images/", Key(Store::Azure)),
            ("az://images/x?sv=1&sig=hidden%3D", Signature),
            ("az://images/x?SIG=hidden.verity", Signature),
            ("gs:///x", Bucket(Store::Gcs)),
            ("gs://Images/x", Bucket(Store::Gcs)),
            ("gs://../x", Bucket(Store::Gcs)),
            ("gs://images", Key(Store::Gcs)),
            ("gs://images/", Key(Store::Gcs)),
        ] {
            assert_eq!(ObjectName::parse(text), Err(error), "{text}");
        }
    }
}
