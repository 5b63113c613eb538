//! Signatures in the queries of URLs: parameters that change with each use of a URL, and do not choose between objects.

/// The parameters of one kind of signature. Names are compared without regard to case.
struct Signature {
    /// A query with all of these has such a signature. The other names alone are too short to tell.
    marks: &'static [&'static str],
    /// Names of its parameters, besides the marks. One that ends with `*` is the beginning of names.
    names: &'static [&'static str],
}

const SIGNATURES: [Signature; 6] = [
    // AWS, and all stores that speak S3's protocol.
    Signature { marks: &["x-amz-signature"], names: &["x-amz-*"] },
    Signature { marks: &["awsaccesskeyid", "signature"], names: &["expires", "x-amz-security-token"] },
    // CloudFront.
    Signature { marks: &["key-pair-id", "signature"], names: &["expires", "policy", "hash-algorithm"] },
    // Google.
    Signature { marks: &["x-goog-signature"], names: &["x-goog-*"] },
    Signature { marks: &["googleaccessid", "signature"], names: &["expires"] },
    // Azure's shared access signatures.
    Signature {
        marks: &["sig", "sv"],
        names: &[
            "ss", "srt", "sr", "sp", "st", "se", "si", "sip", "spr", "ses", "sdd", "skoid", "sktid", "skt",
            "ske", "sks", "skv", "saoid", "suoid", "scid", "sduoid", "skdutid",
        ],
    },
];

/// A query without the parameters of signatures. The others stay as they are, in their order.
pub(super) fn unsigned(query: &str) -> String {
    let names: Vec<_> = query.split('&').map(name).collect();
    let found =
        |signature: &&Signature| signature.marks.iter().all(|mark| names.iter().any(|name| name == mark));
    let signatures: Vec<_> = SIGNATURES.iter().filter(found).collect();
    let is_unsigned = |parameter: &&str| !signatures.iter().any(|signature| signature.has(&name(parameter)));
    query.split('&').filter(is_unsigned).collect::<Vec<_>>().join("&")
}

impl Signature {
    fn has(&self, name: &str) -> bool {
        let is = |known: &&str| match known.strip_suffix('*') {
            Some(start) => name.starts_with(start),
            None => name == *known,
        };
        self.marks.contains(&name) || self.names.iter().any(is)
    }
}

fn name(parameter: &str) -> String {
    parameter.split('=').next().unwrap_or_default().to_ascii_lowercase()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parameters_of_signatures_are_left_out_and_others_stay() {
        for (query, rest) in [
            ("", ""),
            ("v=1", "v=1"),
            ("a&b=&v=1&v=2", "a&b=&v=1&v=2"),
            ("versionId=3&X-Amz-Algorithm=A&X-Amz-Date=1&X-Amz-Signature=f", "versionId=3"),
            ("X-Amz-Date=1", "X-Amz-Date=1"),
            ("AWSAccessKeyId=k&Signature=s&Expires=9&versionId=3", "versionId=3"),
            ("Expires=9&Signature=s&Key-Pair-Id=k&size=2", "size=2"),
            ("generation=7&X-Goog-Credential=c&x-goog-signature=f", "generation=7"),
            ("GoogleAccessId=g&Expires=1&Signature=s", ""),
            ("snapshot=t&sv=2024-01-01&sr=b&se=t&sp=r&sig=f", "snapshot=t"),
            // Short names that may mean anything.
            ("se=1&sp=2", "se=1&sp=2"),
            ("Signature=s&Expires=2", "Signature=s&Expires=2"),
        ] {
            assert_eq!(unsigned(query), rest);
        }
    }
}
