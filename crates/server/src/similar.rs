//! Finds the word that a user probably meant.

/// How similar words must be, from 0 (nothing in common) to 1 (equal).
const MIN_SIMILARITY: f64 = 0.8;

/// The part of a message about the unknown `word` that offers the most similar of `known`; empty if none is similar.
pub fn did_you_mean<'a>(word: &str, known: impl Iterator<Item = &'a str>) -> String {
    let rated = known.map(|known| (strsim::jaro_winkler(word, known), known));
    match rated.max_by(|(a, _), (b, _)| a.total_cmp(b)) {
        Some((similarity, known)) if similarity >= MIN_SIMILARITY => format!(" (did you mean '{known}'?)"),
        _ => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_most_similar_word_is_offered() {
        let known = || ["mem_limit", "mem_used_max", "writeback", "lz4"].into_iter();
        for (word, offered) in
            [("mem_limt", "mem_limit"), ("memlimit", "mem_limit"), ("writebak", "writeback")]
        {
            assert_eq!(did_you_mean(word, known()), format!(" (did you mean '{offered}'?)"), "{word}");
        }
        for word in ["", "nosuch", "zzz"] {
            assert_eq!(did_you_mean(word, known()), "", "{word}");
        }
    }
}
