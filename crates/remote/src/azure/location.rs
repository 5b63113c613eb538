//! The names of blobs, `az://container/blob`.

use std::fmt;

/// Why a text is no name of a blob.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum AzureLocationError {
    /// It does not begin with `az://`.
    #[error("the name of a blob begins with az://")]
    Scheme,
    /// Between `az://` and the next slash there is no name of a container.
    #[error(
        "az:// is followed by the name of a container: lower-case letters, digits and '-', or $root or $web"
    )]
    Container,
    /// The name has a shared access signature behind it, which would be a part of all messages.
    #[error(
        "a shared access signature is no part of the name of a blob: set AZURE_STORAGE_SAS_TOKEN to what follows the \
         question mark, and name the blob without it"
    )]
    Signature,
    /// There is no blob.
    #[error("the name of the container is followed by '/' and the name of a blob")]
    Blob,
}

/// The name of a blob: what follows the container, as it is. Nothing in it is decoded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AzureLocation {
    pub(super) container: String,
    pub(super) blob: String,
}

impl AzureLocation {
    /// Parses `az://container/blob`.
    pub fn parse(text: &str) -> Result<Self, AzureLocationError> {
        let (container, blob) = crate::url::split_name(text, "az").ok_or(AzureLocationError::Scheme)?;
        let is_word = (1..=63).contains(&container.len())
            && container.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-');
        match () {
            () if !(is_word || ["$root", "$web"].contains(&container)) => Err(AzureLocationError::Container),
            () if has_signature(blob) => Err(AzureLocationError::Signature),
            () if !(1..=1024).contains(&blob.len()) => Err(AzureLocationError::Blob),
            () => Ok(AzureLocation { container: container.to_string(), blob: blob.to_string() }),
        }
    }

    /// The path of the blob in URLs, without a slash at its beginning.
    pub(super) fn encoded(&self) -> String {
        format!("{}/{}", self.container, crate::url::encoded_path(&self.blob))
    }
}

/// Whether a URL with a shared access signature was taken for the name of a blob.
fn has_signature(blob: &str) -> bool {
    blob.split_once('?').is_some_and(|(_, query)| query.to_ascii_lowercase().contains("sig="))
}

impl fmt::Display for AzureLocation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "az://{}/{}", self.container, self.blob)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_parsed_or_refused() {
        let location = AzureLocation::parse("AZ://images/a b/é+%41?#.erofs").unwrap();
        assert_eq!(location.encoded(), "images/a%20b/%C3%A9%2B%2541%3F%23.erofs");
        assert_eq!(location.to_string(), "az://images/a b/é+%41?#.erofs");
        assert!(AzureLocation::parse("az://$web/x").is_ok());
        assert!(AzureLocation::parse("az://images/sig=1?x").is_ok());
        for (text, error) in [
            ("https://images/x", AzureLocationError::Scheme),
            ("images/x", AzureLocationError::Scheme),
            ("az:///x", AzureLocationError::Container),
            ("az://Images/x", AzureLocationError::Container),
            ("az://me@images/x", AzureLocationError::Container),
            ("az://images", AzureLocationError::Blob),
            ("az://images/", AzureLocationError::Blob),
            ("az://images/x?sv=1&sig=hidden%3D", AzureLocationError::Signature),
            ("az://images/x?SIG=hidden.verity", AzureLocationError::Signature),
        ] {
            assert_eq!(AzureLocation::parse(text), Err(error), "{text}");
        }
    }
}
