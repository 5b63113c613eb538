use super::*;
use proptest::prelude::*;
use ureq::http::{HeaderName, HeaderValue};

fn head(status: u16, headers: &[(&str, &str)]) -> Head {
    let header = |(name, value): &(&str, &str)| {
        Some((name.parse::<HeaderName>().ok()?, HeaderValue::from_bytes(value.as_bytes()).ok()?))
    };
    Head { status, headers: headers.iter().filter_map(header).collect() }
}

fn version(validator: Validator) -> Version {
    Version { len_bytes: 1000, validator }
}

fn etag(text: &str) -> Validator {
    Validator::Etag(text.into())
}

fn first(head: &Head) -> Result<Verdict, AttemptError> {
    judge(head, &Wanted { range: 0..4096, version: None, is_whole: false, is_checked: false })
}

fn later(head: &Head, version: &Version) -> Result<Verdict, AttemptError> {
    judge(head, &Wanted { range: 100..200, version: Some(version), is_whole: false, is_checked: false })
}

fn is_refused(result: &Result<Verdict, AttemptError>) -> bool {
    matches!(result, Err(AttemptError::Permanent(RemoteError::Refused { .. } | RemoteError::NoRanges)))
}

fn is_changed(result: &Result<Verdict, AttemptError>) -> bool {
    matches!(result, Err(AttemptError::Permanent(RemoteError::Changed { .. })))
}

#[test]
fn the_first_answer_defines_the_version() {
    let range = ("content-range", "bytes 0-999/1000");
    let body = |validator| Ok(Verdict::Body { version: version(validator), range: 0..1000 });
    let time = Validator::LastModified("Wed, 21 Oct 2015 07:28:00 GMT".into());
    let modified = ("last-modified", "Wed, 21 Oct 2015 07:28:00 GMT");
    assert_eq!(first(&head(206, &[range, ("etag", "\"a\""), modified])), body(etag("\"a\"")));
    assert_eq!(first(&head(206, &[range, ("etag", "W/\"a\""), modified])), body(time));
    assert_eq!(first(&head(206, &[range, ("etag", "W/\"a\"")])), body(Validator::None));
    assert_eq!(first(&head(200, &[("content-length", "0")])), Ok(Verdict::Empty));
    assert_eq!(first(&head(416, &[("content-range", "bytes */0")])), Ok(Verdict::Empty));
    assert!(is_refused(&first(&head(200, &[("content-length", "1000")]))));
    assert!(is_refused(&first(&head(206, &[("content-range", "bytes 0-998/1000")]))));
    assert!(is_refused(&first(&head(206, &[("content-range", "bytes 0-999/*")]))));
    assert!(is_refused(&first(&head(206, &[]))));
}

#[test]
fn later_answers_must_have_the_range_and_the_version() {
    let known = version(etag("\"a\""));
    let right = [("content-range", "bytes 100-199/1000"), ("etag", "\"a\""), ("content-length", "100")];
    let body = Ok(Verdict::Body { version: known.clone(), range: 100..200 });
    assert_eq!(later(&head(206, &right), &known), body);
    let with = |name: &str, value: &str| {
        let others = right.iter().filter(|(n, _)| *n != name).copied();
        later(&head(206, &others.chain([(name, value)]).collect::<Vec<_>>()), &known)
    };
    for range in [
        "bytes 0-99/1000",
        "bytes 100-198/1000",
        "bytes 100-200/1000",
        "bytes */1000",
        "bytes 100-199/*",
        "x",
    ] {
        assert!(is_refused(&with("content-range", range)), "{range}");
    }
    assert!(is_refused(&with("content-length", "99")) && is_refused(&with("content-length", "x")));
    assert!(is_refused(&with("content-encoding", "gzip")));
    assert_eq!(with("content-encoding", "identity"), body);
    assert!(is_changed(&with("content-range", "bytes 100-199/1001")));
    assert!(is_changed(&with("etag", "\"b\"")) && is_changed(&with("etag", "W/\"a\"")));
    assert!(is_changed(&with("etag", "")));
    let shorter = head(416, &[("content-range", "bytes */99")]);
    assert!(is_changed(&later(&head(412, &[]), &known)) && is_changed(&later(&shorter, &known)));
    // A server without range requests says no length.
    let refused = Err(AttemptError::Permanent(RemoteError::Status { status: 416 }));
    assert_eq!(later(&head(416, &[]), &known), refused);
    assert!(is_refused(&later(&head(200, &[("content-length", "0")]), &known)));

    let by_time = version(Validator::LastModified("then".into()));
    let range = right[0];
    assert!(later(&head(206, &[range, ("last-modified", "then")]), &by_time).is_ok());
    assert!(is_changed(&later(&head(206, &[range, ("last-modified", "now")]), &by_time)));
    assert!(is_changed(&later(&head(206, &[range]), &by_time)));
    assert!(later(&head(206, &[range, ("etag", "\"x\"")]), &version(Validator::None)).is_ok());
}

#[test]
fn failures_of_servers_are_transient_and_refusals_are_permanent() {
    for status in [408, 429, 500, 502, 503, 504, 599] {
        let error = RemoteError::Status { status };
        let retry_after = Some(Duration::from_secs(3));
        let failure = AttemptError::Transient { error, retry_after };
        assert_eq!(first(&head(status, &[("retry-after", "3")])), Err(failure));
    }
    let limited = Err(AttemptError::Transient {
        error: RemoteError::Status { status: 429 },
        retry_after: Some(Duration::ZERO),
    });
    assert_eq!(first(&head(429, &[])), limited);
    for status in [100, 204, 304, 400, 501, 505, 401, 403, 404, 410, 451] {
        assert_eq!(first(&head(status, &[])), Err(AttemptError::Permanent(RemoteError::Status { status })));
    }
    assert_eq!(first(&head(302, &[("location", "/x")])), Ok(Verdict::Redirect("/x".into())));
    assert!(matches!(first(&head(302, &[])), Err(AttemptError::Permanent(RemoteError::Redirect { .. }))));
}

proptest! {
    /// Whatever a server sends: a body that is accepted is the range and the version that were asked for.
    #[test]
    fn accepted_bodies_are_of_the_range_and_the_version(
        status in prop_oneof![Just(206_u16), Just(200), any::<u16>()],
        range in prop_oneof!["bytes 100-199/1000", "bytes [0-9]{1,4}-[0-9]{1,4}/[0-9*]{1,4}", ".{0,20}"].prop_map(Some),
        length in proptest::option::of("(100|[0-9]{0,4})"),
        tag in proptest::option::of("(W/)?\"[ab]{0,2}\""),
        is_first in any::<bool>(),
    ) {
        let headers = [("content-range", range), ("content-length", length), ("etag", tag.clone())];
        let headers: Vec<_> =
            headers.iter().filter_map(|(name, value)| Some((*name, value.as_deref()?))).collect();
        let head = head(status, &headers);
        let known = version(etag("\"a\""));
        let wanted = Wanted { range: 100..200, version: (!is_first).then_some(&known), is_whole: false, is_checked: false };
        if let Ok(Verdict::Body { version, range }) = judge(&head, &wanted) {
            prop_assert_eq!(status, 206);
            prop_assert!(range.start == 100 && range.end == 200.min(version.len_bytes));
            prop_assert!(head.get("content-length").is_none_or(|l| l.parse() == Ok(range.end - range.start)));
            if !is_first {
                prop_assert_eq!(version, known);
                prop_assert_eq!(tag.as_deref(), Some("\"a\""));
            }
        }
    }
}

#[test]
fn a_whole_object_has_an_end_that_is_marked_or_is_checked_otherwise() {
    let judged = |headers: &[(&str, &str)], is_checked: bool| {
        judge(&head(200, headers), &Wanted { range: 0..u64::MAX, version: None, is_whole: true, is_checked })
    };
    for (headers, len_bytes) in [
        (vec![("content-length", "7")], 7),
        (vec![("transfer-encoding", "Chunked")], u64::MAX),
        (vec![("transfer-encoding", "gzip, chunked")], u64::MAX),
    ] {
        let version = Version { len_bytes, validator: Validator::None };
        assert_eq!(
            judged(&headers, false),
            Ok(Verdict::Body { version, range: 0..len_bytes }),
            "{headers:?}"
        );
    }
    for headers in [vec![], vec![("transfer-encoding", "identity")], vec![("content-length", "x")]] {
        let refused = judged(&headers, false);
        let Err(AttemptError::Permanent(RemoteError::Refused { what })) = refused else {
            panic!("{refused:?}")
        };
        assert!(what.contains("does not say the length"), "{what}");
        assert!(judged(&headers, true).is_ok(), "{headers:?}");
    }
}
