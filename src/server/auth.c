/*
 * auth.c - API keys: "Authorization: Bearer KEY" or "x-api-key: KEY". Every key is compared, each
 * in time that does not depend on where it differs.
 */
#include "server/server_int.h"

#include <strings.h>

#include "base/hash.h"

/* Digests are compared, so neither length nor content of a key shows in the time. */
static bool same(const char *a, const char *b)
{
    char x[65], y[65];
    unsigned char diff = 0;
    sha256(a, strlen(a), x);
    sha256(b, strlen(b), y);
    for (int i = 0; i < 64; i++)
        diff |= (unsigned char)(x[i] ^ y[i]);
    return diff == 0;
}

static const char *presented(struct MHD_Connection *mc)
{
    const char *v = MHD_lookup_connection_value(mc, MHD_HEADER_KIND, "Authorization");
    if (v && strncasecmp(v, "Bearer ", 7) == 0) {
        v += 7;
        while (*v == ' ')
            v++;
        return v;
    }
    return MHD_lookup_connection_value(mc, MHD_HEADER_KIND, "x-api-key");
}

bool auth_ok(const struct server *s, struct MHD_Connection *mc, int *key_index)
{
    const char *const *keys = s->p.api_keys;
    *key_index = -1;
    if (!keys || !*keys)
        return true;
    const char *given = presented(mc);
    if (!given)
        return false;
    for (int i = 0; keys[i]; i++)
        if (same(given, keys[i]))
            *key_index = i;
    return *key_index >= 0;
}
