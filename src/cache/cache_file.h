/*
 * cache_file.h - files of single conversations, as those above the prompt cache see them: what the
 * cache has of a line, saved to a file of a name, to be put back later, also by another process of
 * the same model (saved.h). The scheduler's thread; the structs cross processes.
 */
#ifndef CACHE_CACHE_FILE_H
#define CACHE_CACHE_FILE_H

#include "quern.h"

/* dir is made when it is not there. Reads the model's weights once, as qn_cache_disk_open. */
enum qn_status pcache_files_open(struct qn_cache *c, const char *dir, struct qn_err *err);
bool pcache_has_files(const struct qn_cache *c);
/* By which such files, and the disk tier's, know the model: 32 bytes; NULL before one is open. */
const uint8_t *pcache_fingerprint(const struct qn_cache *c);

enum { CACHE_FILE_NAME_MAX = 64 };
struct cache_file_ask {
    bool go_on;   /* with what was begun, with the room that is left now; all else is not read */
    bool restore; /* else save */
    char name[CACHE_FILE_NAME_MAX + 1];
    struct qn_line line; /* save: the longest beginning of it that can be gone on from */
    int64_t room; /* restore: bytes of memory that it may take beside all else; 0 = no bound but the
                     cache's */
};
struct cache_file_told {
    /* Its code: QN_NOT_FOUND nothing of the line is in memory, or there is no such file;
     * QN_UNSUPPORTED another model's, or another format; QN_BAD_INPUT damaged, or no such file at
     * all; QN_NO_MEMORY more than the cache may hold; QN_BUSY more than is left now. */
    struct qn_err err;
    int32_t tokens;       /* saved; or that can be gone on from after a restore */
    int32_t draft_tokens; /* of these, tokens whose part of what guesses is saved, or back, too */
    int64_t bytes;        /* of the file */
    int64_t draft_bytes;  /* of a file of its own that a second model has; the scheduler's affair */
    char sum[33];         /* its checksum, 32 digits */
};
/* Begins to save or restore, or goes on with it (go_on, or ask NULL: with no bound of room), a few
 * milliseconds at a time: the files are read and written by a thread of the cache's own. True: it
 * has ended, *out says how. Nothing of a file comes into the cache, and nothing leaves it for the
 * file's sake, unless every byte of it is what was saved. */
bool pcache_file(struct qn_cache *c, const struct cache_file_ask *ask, struct cache_file_told *out);

#endif
