//! The names of objects in buckets, `s3://bucket/key`, and their paths in URLs.

use std::fmt;

/// Why a text is no name of an object.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum S3LocationError {
    /// It does not begin with `s3://`.
    #[error("the name of an object in a bucket begins with s3://")]
    Scheme,
    /// Between `s3://` and the next slash there is no name of a bucket.
    #[error("s3:// is followed by the name of a bucket: letters, digits, '-', '.' and '_'")]
    Bucket,
    /// There is no key.
    #[error("the name of the bucket is followed by '/' and the key of an object")]
    Key,
}

/// The name of an object. The key is what follows the bucket, as it is: nothing in it is decoded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct S3Location {
    pub(super) bucket: String,
    pub(super) key: String,
}

impl S3Location {
    /// Parses `s3://bucket/key`.
    pub fn parse(text: &str) -> Result<Self, S3LocationError> {
        let (bucket, key) = crate::url::split_name(text, "s3").ok_or(S3LocationError::Scheme)?;
        let is_bucket = (1..=255).contains(&bucket.len())
            && bucket.bytes().all(|b| b.is_ascii_alphanumeric() || b"-._".contains(&b))
            && !bucket.starts_with('.')
            && !bucket.contains("..");
        match () {
            () if !is_bucket => Err(S3LocationError::Bucket),
            () if !(1..=1024).contains(&key.len()) => Err(S3LocationError::Key),
            () => Ok(S3Location { bucket: bucket.to_string(), key: key.to_string() }),
        }
    }

    /// The key as the path of a URL and as signatures need it.
    pub(super) fn encoded_key(&self) -> String {
        crate::url::encoded_path(&self.key)
    }
}

impl fmt::Display for S3Location {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "s3://{}/{}", self.bucket, self.key)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_parsed_or_refused_and_keys_encoded() {
        let location = S3Location::parse("S3://images/a b/é+%41?#.erofs").unwrap();
        assert_eq!((location.bucket.as_str(), location.key.as_str()), ("images", "a b/é+%41?#.erofs"));
        assert_eq!(location.encoded_key(), "a%20b/%C3%A9%2B%2541%3F%23.erofs");
        assert_eq!(location.to_string(), "s3://images/a b/é+%41?#.erofs");
        for (text, error) in [
            ("http://bucket/key", S3LocationError::Scheme),
            ("bucket/key", S3LocationError::Scheme),
            ("s3:///key", S3LocationError::Bucket),
            ("s3://me@host/key", S3LocationError::Bucket),
            ("s3://a..b/key", S3LocationError::Bucket),
            ("s3://.a/key", S3LocationError::Bucket),
            ("s3://bucket", S3LocationError::Key),
            ("s3://bucket/", S3LocationError::Key),
        ] {
            assert_eq!(S3Location::parse(text), Err(error), "{text}");
        }
    }
}
