/* Says what it runs as: a set-user-ID file of root's runs as root, unless a container must not gain privileges. */
#include <stdio.h>
#include <unistd.h>

int main(void) {
    printf("Effective uid: %d\n", (int)geteuid());
    return 0;
}
