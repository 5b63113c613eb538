//! The names of objects of Google's storage, `gs://bucket/object`.

use std::fmt;

/// Why a text is no name of an object.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum GcsLocationError {
    /// It does not begin with `gs://`.
    #[error("the name of an object in Google's storage begins with gs://")]
    Scheme,
    /// Between `gs://` and the next slash there is no name of a bucket.
    #[error("gs:// is followed by the name of a bucket: lower-case letters, digits, '-', '_' and '.'")]
    Bucket,
    /// There is no object.
    #[error("the name of the bucket is followed by '/' and the name of an object")]
    Object,
}

/// The name of an object: what follows the bucket, as it is. Nothing in it is decoded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GcsLocation {
    bucket: String,
    object: String,
}

impl GcsLocation {
    /// Parses `gs://bucket/object`.
    pub fn parse(text: &str) -> Result<Self, GcsLocationError> {
        let (bucket, object) = crate::url::split_name(text, "gs").ok_or(GcsLocationError::Scheme)?;
        let is_bucket = (1..=222).contains(&bucket.len())
            && bucket.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b"-_.".contains(&b))
            && !bucket.starts_with('.')
            && !bucket.contains("..");
        match () {
            () if !is_bucket => Err(GcsLocationError::Bucket),
            () if !(1..=1024).contains(&object.len()) => Err(GcsLocationError::Object),
            () => Ok(GcsLocation { bucket: bucket.to_string(), object: object.to_string() }),
        }
    }

    /// The path of the object in URLs, without a slash at its beginning.
    pub(super) fn encoded(&self) -> String {
        format!("{}/{}", self.bucket, crate::url::encoded_path(&self.object))
    }
}

impl fmt::Display for GcsLocation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "gs://{}/{}", self.bucket, self.object)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_parsed_or_refused() {
        let location = GcsLocation::parse("GS://my_images.example.org/a b/é?#.erofs").unwrap();
        assert_eq!(location.encoded(), "my_images.example.org/a%20b/%C3%A9%3F%23.erofs");
        assert_eq!(location.to_string(), "gs://my_images.example.org/a b/é?#.erofs");
        for (text, error) in [
            ("s3://images/x", GcsLocationError::Scheme),
            ("images/x", GcsLocationError::Scheme),
            ("gs:///x", GcsLocationError::Bucket),
            ("gs://Images/x", GcsLocationError::Bucket),
            ("gs://../x", GcsLocationError::Bucket),
            ("gs://images", GcsLocationError::Object),
            ("gs://images/", GcsLocationError::Object),
        ] {
            assert_eq!(GcsLocation::parse(text), Err(error), "{text}");
        }
    }
}
